"""The style sheet: a quiet page in light and dark, on a phone and on paper, which is light always."""

_LIGHT = """--paper:#fdfdfc;--ink:#1c1f23;--soft:#5b6169;--line:#e3e4e2;--pale:#f3f4f2;--q0:#e9ebe8;--q1:#cfdbe4;\
--c0:#0067a3;--c1:#b84a00;--c2:#00795a;--c3:#7d4b8e;--tint:#e8f1f7;--warn:#fff4e0"""

STYLE = """
:root{@LIGHT@}
@media (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e6e8ea;--soft:#a2aab3;--line:#2c3136;--pale:#1d2125;
--q0:#24292e;--q1:#2c4252;--c0:#5bb4e8;--c1:#f0924c;--c2:#4cc79e;--c3:#c99adb;--tint:#17293a;--warn:#33270f}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:break-word}
main{max-width:1120px;margin:0 auto;padding:48px 24px 24px}
footer{max-width:1120px;margin:0 auto;padding:16px 24px 40px;color:var(--soft);font-size:13px}
.over{margin:0;color:var(--soft);font-size:13px;letter-spacing:.04em}
h1{margin:2px 0 4px;font-size:clamp(26px,5vw,38px);line-height:1.15;letter-spacing:-.02em;font-weight:650}
h2{margin:0 0 4px;font-size:21px;letter-spacing:-.01em;font-weight:650}
h3{margin:26px 0 10px;font-size:15px;font-weight:600}
.about{margin:0;color:var(--soft)}
section{margin-top:56px;padding-top:20px;border-top:1px solid var(--line)}
.hero{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,360px);column-gap:48px;
align-items:center;margin-top:28px}
.big{margin:0}
.big strong{display:block;font-size:clamp(64px,12vw,112px);line-height:1;letter-spacing:-.045em;font-weight:650;
color:var(--c0)}
.big span{font-size:20px;color:var(--soft)}
.hero dl{grid-column:1/-1;display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:20px 32px;
margin:36px 0 0}
.hero dl div{border-top:2px solid var(--ink);padding-top:8px}
.hero dt{font-size:13px;color:var(--soft)}
.hero dd{margin:0}
.hero dd strong{display:block;font-size:25px;line-height:1.25;font-weight:600;letter-spacing:-.01em}
.hero dd small{display:block;font-size:13px;color:var(--soft)}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,310px),1fr));gap:28px 40px}
figure{margin:0;min-width:0}
.wide figure{max-width:500px}
.wide,table+.grid{margin-top:24px}
figcaption{font-size:14px;line-height:1.35;margin-bottom:6px}
figcaption b{font-weight:600;margin-right:.6em}
figcaption span{color:var(--soft);font-size:13px}
.below{margin:4px 0 0;color:var(--soft);font-size:13px;line-height:1.4}
svg{display:block;width:100%;height:auto;overflow:visible;font-size:11px}
svg text{fill:var(--ink)}
svg .tick,svg .mark{fill:var(--soft)}
svg .mark{font-size:10px}
svg .end{font-weight:600}
svg .out{font-weight:700;fill:var(--c1)}
svg .rule{stroke:var(--line);stroke-width:1}
svg .axis{stroke:var(--soft);stroke-width:1}
svg .band{fill:var(--pale)}
svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}
svg .thin{stroke-width:.8;opacity:.8}
svg .line.c0,svg .strokes.c0{stroke:var(--c0)}svg .line.c1,svg .strokes.c1{stroke:var(--c1)}
svg .line.c2{stroke:var(--c2)}svg .line.c3{stroke:var(--c3)}
svg .d1{stroke-dasharray:7 3}svg .d2{stroke-dasharray:2 3}svg .d3{stroke-dasharray:8 3 2 3}
svg text.c0,svg .dot.c0,svg .bar.c0{fill:var(--c0)}svg text.c1,svg .dot.c1,svg .bar.c1{fill:var(--c1)}
svg text.c2,svg .dot.c2{fill:var(--c2)}svg text.c3,svg .dot.c3{fill:var(--c3)}
svg .bar{opacity:.3}
svg .strokes{fill:none;stroke-width:1.4}
svg .faint{stroke-width:1;opacity:.45}
svg .whisker{stroke:var(--ink);stroke-width:1.5}
svg .dot{fill-opacity:.85;stroke:var(--paper);stroke-width:1}
svg .diagonal{stroke:var(--soft);stroke-dasharray:3 3}
svg .gap{stroke:var(--c1);stroke-width:1.5}
svg .square{fill:none;stroke:var(--soft);stroke-width:1}
svg .q0{fill:var(--q0);stroke:none}svg .q1{fill:var(--q1);stroke:none}
svg .square.final{fill:var(--c0);stroke:none}
svg .leader{fill:none;stroke:var(--soft);stroke-width:.75}
svg .size{font-size:15px;font-weight:600}
.hard{grid-column:span 2}
.hard figure{display:grid;grid-template-columns:140px minmax(0,440px);column-gap:24px;align-items:start}
.hard figcaption{grid-column:1/-1}
.hard figure>svg:nth-child(2){grid-column:1/-1}
.picture{display:block;width:140px;height:140px;image-rendering:pixelated;border:1px solid var(--line);margin:4px 0 8px}
table{width:100%;border-collapse:collapse;font-size:14px;margin-top:14px}
caption{text-align:left;color:var(--soft);font-size:13px;padding-bottom:6px}
th,td{text-align:left;padding:7px 14px 7px 0;border-bottom:1px solid var(--line);vertical-align:baseline;
font-weight:400}
thead th{color:var(--soft);font-size:13px;border-bottom:1px solid var(--soft)}
tbody th{font-weight:600;min-width:7em;overflow-wrap:anywhere}
.n{text-align:right;white-space:nowrap}
.about{color:var(--soft)}
td small{display:block;color:var(--soft);font-size:12px;overflow-wrap:anywhere}
.total td{font-weight:600}
td.about,th.about{padding-left:14px}
.chosen th,.chosen td{background:var(--tint)}
.chosen th{color:var(--c0)}
.keys{margin:4px 0 0;font-size:13px;color:var(--soft)}
.key{margin-right:18px;white-space:nowrap}
.key::before{content:"";display:inline-block;width:9px;height:9px;border-radius:50%;margin-right:6px}
.key.c0::before{background:var(--c0)}.key.c1::before{background:var(--c1)}
.key.c2::before{background:var(--c2)}.key.c3::before{background:var(--c3)}
.note{color:var(--soft);font-size:14px}
details{font-size:14px}
.more{margin-top:20px}.more .grid{margin-top:16px}
summary{cursor:pointer;padding:2px 0;color:var(--soft)}
summary b{color:var(--ink);font-weight:600}
details ol{list-style:none;margin:6px 0 0;padding:0}
details li{display:flex;gap:12px;padding:2px 0}
details li span{flex:0 0 74px;color:var(--soft)}
.facts{columns:3 300px;column-gap:40px}
.facts>div{break-inside:avoid;padding:14px 0 6px}
.facts dl{margin:0;font-size:14px}
.facts dl div{display:flex;justify-content:space-between;gap:16px;padding:4px 0;border-bottom:1px solid var(--line)}
.facts dt{color:var(--soft);min-width:0}
.facts dd{margin:0;text-align:right;min-width:0;overflow-wrap:anywhere}
.facts h3{margin:0 0 6px}
.warning{background:var(--warn);padding:12px 16px;border-radius:6px;font-size:14px;margin-top:12px}
.warning ul{margin:4px 0 0;padding-left:20px}
@media (max-width:720px){
main{padding:28px 18px 12px}footer{padding:12px 18px 32px}
section{margin-top:40px}
.hero{grid-template-columns:minmax(0,1fr);row-gap:20px;margin-top:20px}
.hero dl{grid-template-columns:repeat(2,minmax(0,1fr));gap:18px 20px;margin-top:8px}
.hero dd strong{font-size:21px}
table,tbody,tr,th,td,caption{display:block}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tbody tr{border-bottom:1px solid var(--line);padding:10px 0}
tbody th{border:0;padding:0 0 4px;font-size:15px}
td{display:flex;justify-content:space-between;gap:16px;border:0;padding:1px 0;text-align:right;white-space:normal}
td::before{content:attr(data-label);color:var(--soft);font-weight:400;text-align:left;flex:none}
td:empty{display:none}
td.about{display:block;text-align:left;padding:0;font-size:13px}
.pairs tr{display:grid;grid-template-columns:1fr 1fr;column-gap:22px;font-size:13px}
.pairs th{grid-column:1/-1}
.hard{grid-column:auto}.hard figure{display:block}.picture{width:96px;height:96px}
.chosen{background:var(--tint);margin:0 -10px;padding:10px}
}
@media print{
:root{@LIGHT@;--paper:#fff;--ink:#000;--soft:#444}
body{font-size:11pt}main{padding:0;max-width:none}
section{margin-top:24pt}
figure,tr,.hero,.facts>div{break-inside:avoid}h2,h3{break-after:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
""".replace("@LIGHT@", _LIGHT)
