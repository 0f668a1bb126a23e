// SPDX-License-Identifier: MPL-2.0

//! Statistics over several rounds.

/// The probability that [`interval`] does not contain the true median.
const RISK: f64 = 0.05;

/// The median of the values. `None` if there are none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let values = sorted(values);
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[n / 2]),
        n => Some(f64::midpoint(values[n / 2 - 1], values[n / 2])),
    }
}

pub(crate) fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The 95 % confidence interval of the median, by the sign test. It assumes no distribution: each value is above or below the
/// median with the same probability. With fewer than six values the interval is the smallest and the largest value, at a lower
/// confidence. `None` if there are fewer than two values.
pub(crate) fn interval(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let values = sorted(values);
    let n = values.len();
    if n < 2 {
        return None;
    }
    // `missed` is the probability that at most `left_out` of n values are below the median, or at most as many above it.
    let mut left_out = 0;
    let mut chance = 2.0 * 0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut missed = chance;
    loop {
        chance *= (n - left_out) as f64 / (left_out + 1) as f64;
        missed += chance;
        if missed > RISK || 2 * (left_out + 1) >= n {
            break;
        }
        left_out += 1;
    }
    Some((values[left_out], values[n - 1 - left_out]))
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median([4.0, 1.0, 9.0, 2.0]), Some(3.0));
        assert_eq!(median([]), None);
    }

    #[test]
    fn the_interval_has_the_published_width() {
        let upto = |n: u32| interval((1..=n).map(f64::from));
        assert_eq!(upto(0), None);
        assert_eq!(upto(1), None);
        assert_eq!(upto(2), Some((1.0, 2.0)));
        assert_eq!(upto(5), Some((1.0, 5.0)));
        // The ranks of the 95 % interval, as printed in tables of the sign test.
        assert_eq!(upto(8), Some((1.0, 8.0)));
        assert_eq!(upto(9), Some((2.0, 8.0)));
        assert_eq!(upto(12), Some((3.0, 10.0)));
        assert_eq!(upto(20), Some((6.0, 15.0)));
        assert_eq!(upto(40), Some((14.0, 27.0)));
    }
}
