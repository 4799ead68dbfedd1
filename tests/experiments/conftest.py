import pytest
from experiments.tiny import write_data, write_table

from rankfold.experiments.results import Places


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def places(tmp_path, data_folder):
    write_table(tmp_path / "experiments")
    return Places(tmp_path / "experiments", tmp_path / "results", tmp_path / "runs", data_folder, verify=False)
