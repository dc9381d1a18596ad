//! How results look on a terminal: aligned tables, numbers a person can read, small pictures, a verdict.

use std::fmt;

/// A titled table: a label, a number, and a remark a line.
#[derive(Debug)]
pub struct Table {
    title: String,
    rows: Vec<[String; 3]>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), rows: Vec::new() }
    }

    /// Adds a line.
    pub fn row(&mut self, label: impl Into<String>, value: impl Into<String>, remark: impl Into<String>) {
        self.rows.push([label.into(), value.into(), remark.into()]);
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    }
}

impl fmt::Display for Table {
    /// Labels to the left, numbers to the right, so that digits stand under digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", console::style(&self.title).bold())?;
        let (labels, values) = (self.width(0), self.width(1));
        for [label, value, remark] in &self.rows {
            let line = format!("  {label:<labels$}  {value:>values$}  {remark}");
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// One line that says whether it is good or bad, in green or red where the terminal has colours.
pub fn verdict(good: bool, text: &str) -> String {
    let (mark, style) =
        if good { ("✔", console::Style::new().green()) } else { ("✘", console::Style::new().red()) };
    style.bold().apply_to(format!("{mark} {text}")).to_string()
}

/// A whole number in groups of three digits: `5,000`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time given in ms, in the unit that suits it: `0.42 ms`, `12.3 ms`, `4.56 s`.
pub fn millis(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 1_000.0 => format!("{ms:.1} ms"),
        ms => format!("{:.2} s", ms / 1_000.0),
    }
}

/// A row of small bars, the highest for the greatest number; nothing is drawn for zero.
pub fn sparkline(numbers: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let greatest = numbers.iter().copied().max().unwrap_or(0);
    let bar = |number: u64| match number {
        0 => ' ',
        _ => BARS[usize::try_from((u128::from(number) * 8).div_ceil(u128::from(greatest)) - 1).unwrap_or(7).min(7)],
    };
    numbers.iter().map(|&number| bar(number)).collect()
}

/// A bar of `width` cells, filled as far as `part` is of `whole`. A part above the whole fills it and no more.
pub fn bar(part: u64, whole: u64, width: usize) -> String {
    let filled = if whole == 0 { 0 } else { (part.min(whole) as u128 * width as u128 / u128::from(whole)) as usize };
    format!("{}{}", "█".repeat(filled), "░".repeat(width - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_grouped_by_three_digits() {
        let texts = [0, 999, 1_000, 1_234_567].map(count);
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_time_is_shown_in_the_unit_that_suits_it() {
        assert_eq!([0.419, 12.34, 999.0, 4_560.0].map(millis), ["0.42 ms", "12.3 ms", "999.0 ms", "4.56 s"]);
    }

    #[test]
    fn the_greatest_number_gets_the_highest_bar_and_zero_gets_none() {
        assert_eq!(sparkline(&[0, 1, 50, 100]), " ▁▄█");
        assert_eq!(sparkline(&[u64::MAX, 1]), "█▁");
        assert_eq!(sparkline(&[0, 0]), "  ");
        assert_eq!(sparkline(&[]), "");
    }

    #[test]
    fn a_bar_is_full_only_when_all_is_there() {
        assert_eq!(bar(99, 100, 10), "█████████░");
        assert_eq!(bar(100, 100, 10), "██████████");
        assert_eq!(bar(200, 100, 10), "██████████");
        assert_eq!(bar(0, 0, 3), "░░░");
    }

    #[test]
    fn the_numbers_of_a_table_stand_under_each_other() {
        let mut table = Table::new("Title");
        table.row("places", "100", "");
        table.row("people", "5,000", "came");
        let text = console::strip_ansi_codes(&table.to_string()).into_owned();
        assert_eq!(text, "Title\n  places    100\n  people  5,000  came\n");
    }
}
