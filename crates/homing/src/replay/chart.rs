//! Line charts as inline SVG: enough for a report that needs no network and no script.

use std::fmt::Write as _;

/// A line.
pub(super) struct Line {
    pub(super) name: String,
    /// In the order of x. What is not finite is left out.
    pub(super) points: Vec<(f64, f64)>,
}

/// A chart.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    /// Whether x is drawn by its logarithm.
    pub(super) log: bool,
    /// Where y ends; it begins at 0.
    pub(super) top: f64,
    pub(super) lines: Vec<Line>,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
/// Room for the numbers at the left and below, and a little elsewhere.
const LEFT: f64 = 46.0;
const BELOW: f64 = 36.0;
const EDGE: f64 = 10.0;

/// A colour for the n-th line: neighbours differ much (the golden angle).
fn colour(n: usize) -> String {
    format!("hsl({:.0} 65% 42%)", (210.0 + n as f64 * 137.5) % 360.0)
}

/// Text in HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Chart<'_> {
    /// The SVG, and its legend.
    pub(super) fn svg(&self) -> String {
        let scale = |x: f64| if self.log { x.max(1e-9).log10() } else { x };
        let all = || self.lines.iter().flat_map(|l| &l.points).filter(|p| p.0.is_finite());
        let low = all().map(|p| scale(p.0)).fold(f64::INFINITY, f64::min);
        let high = all().map(|p| scale(p.0)).fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
        let top = if self.top > 0.0 { self.top } else { 1.0 };
        let to_x = |x: f64| LEFT + (scale(x) - low) / (high - low) * (WIDTH - LEFT - EDGE);
        let to_y = |y: f64| HEIGHT - BELOW - y.clamp(0.0, top) / top * (HEIGHT - BELOW - EDGE);
        let mut out = format!(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">",
            escaped(self.title)
        );
        // Writing into a string can't fail.
        for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let y = to_y(part * top);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - EDGE,
                LEFT - 5.0,
                y + 4.0,
                number(part * top)
            );
            let at = low + part * (high - low);
            let x = LEFT + part * (WIDTH - LEFT - EDGE);
            let value = if self.log { 10f64.powf(at) } else { at };
            let anchor = if part == 1.0 { "end" } else { "middle" };
            let _ = write!(
                out,
                "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
                HEIGHT - BELOW + 15.0,
                number(value)
            );
        }
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            (LEFT + WIDTH) / 2.0,
            HEIGHT - 5.0,
            escaped(self.x)
        );
        for (n, line) in self.lines.iter().enumerate() {
            let points = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
            let points: Vec<_> =
                points.map(|(x, y)| format!("{:.1},{:.1}", to_x(*x), to_y(*y))).collect();
            let _ = write!(
                out,
                "<polyline points=\"{}\" stroke=\"{}\"><title>{}</title></polyline>",
                points.join(" "),
                colour(n),
                escaped(&line.name)
            );
        }
        out.push_str("</svg><p class=\"legend\">");
        for (n, line) in self.lines.iter().enumerate() {
            let _ = write!(
                out,
                "<span style=\"color:{}\">&#9632; {}</span> ",
                colour(n),
                escaped(&line.name)
            );
        }
        out.push_str("</p></figure>");
        out
    }
}

/// As few digits as tell it.
fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 100.0 || a == 0.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}
