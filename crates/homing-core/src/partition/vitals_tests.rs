//! Who is alive, by what comes back: stalls, faults, trials.

use super::*;

const W: WorkerId = WorkerId(3);

fn at(seconds: f64) -> Time {
    Time::from_micros(1_000_000_000) + Duration::from_secs_f64(seconds)
}

fn one() -> Vitals {
    let mut v = Vitals::new(VitalSettings::default());
    v.add(W);
    v
}

fn is_stalled(v: &mut Vitals, now: Time) -> bool {
    v.look(now);
    v.check(|w| w == W);
    v.of(W) == Some(Ailment::Stalled)
}

#[test]
fn f62_silence_counts_while_somebody_waits() {
    let mut v = one();
    assert!(!is_stalled(&mut v, at(1000.0)), "nobody waits");
    v.sent(at(2000.0), W, Duration::from_secs(10));
    assert!(!is_stalled(&mut v, at(2009.9)));
    v.heard(at(2009.9), W);
    assert!(!is_stalled(&mut v, at(2019.5)));
    assert!(is_stalled(&mut v, at(2020.5)));
    assert!(v.heard(at(2021.0), W), "any byte clears it");
    assert!(!is_stalled(&mut v, at(2030.0)));
    v.ended(at(2030.0), W);
    assert!(!is_stalled(&mut v, at(9999.0)), "nobody waits any more");
}

#[test]
fn f62_clients_that_give_up_one_by_one_hide_no_stall() {
    let mut v = one();
    for i in 0..3 {
        let t = f64::from(i) * 100.0;
        v.sent(at(t), W, Duration::from_secs(10));
        assert!(!is_stalled(&mut v, at(t + 2.9)), "{i}");
        v.ended(at(t + 3.0), W);
    }
    v.sent(at(399.0), W, Duration::from_secs(10));
    assert!(is_stalled(&mut v, at(401.0)), "ten seconds of silence, in five parts");
    v.ended(at(402.0), W);
    assert_eq!(v.of(W), Some(Ailment::Stalled), "and stays so until something comes");
}

#[test]
fn a_long_prompt_has_its_time() {
    assert_eq!(Vitals::patience(100.0, None), STALL_LEAST);
    assert_eq!(Vitals::patience(20_000.0, None), Duration::from_secs(60));
    assert_eq!(Vitals::patience(1_000.0, Some(20.0)), Duration::from_secs_f64(3.0 + 163.84));
    for wild in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
        let p = Vitals::patience(wild, Some(wild));
        assert!((STALL_LEAST..=Duration::from_secs(86_400)).contains(&p), "{wild}: {p:?}");
    }
    let mut v = one();
    v.sent(at(0.0), W, Duration::from_secs(10));
    v.sent(at(1.0), W, Duration::from_secs(60));
    assert!(!is_stalled(&mut v, at(59.0)), "the longest of them counts");
    assert!(is_stalled(&mut v, at(61.0)));
}

#[test]
fn f61_five_faults_in_a_row() {
    let mut v = one();
    for i in 0..4 {
        assert!(!v.fault(at(f64::from(i)), W, false));
    }
    v.answered(at(4.0), W);
    for i in 5..9 {
        assert!(!v.fault(at(f64::from(i)), W, false), "an answer between them starts anew");
    }
    assert!(v.fault(at(9.0), W, false));
    assert!(!v.fault(at(9.1), W, false), "no news");
    assert_eq!(v.of(W), Some(Ailment::Failing));
    assert!(v.keeps_away(at(9.5), W) && !v.keeps_away(at(10.0), W), "a second later it is tried");
    v.heard(at(10.0), W);
    assert_eq!(v.of(W), Some(Ailment::Failing), "the bytes of a stream from before are no answer");
    assert!(v.answered(at(10.1), W));
    assert_eq!(v.of(W), None);
    v.check(|w| w == W);
}

#[test]
fn streams_that_all_break_off_are_faults_too() {
    let mut v = one();
    for i in 0..5 {
        v.answered(at(f64::from(i)), W);
        assert_eq!(v.fault(at(f64::from(i)), W, true), i == 4);
    }
    v.answered(at(6.0), W);
    assert_eq!(v.of(W), Some(Ailment::Failing), "it begins well and ends badly");
    assert!(v.completed(at(7.0), W));
    assert_eq!(v.of(W), None);
}

#[test]
fn one_trial_at_a_time_and_longer_pauses() {
    let mut v = one();
    assert!(!v.placed(W), "it is well");
    (0..5).for_each(|_| _ = v.fault(at(0.0), W, false));
    let mut now = 1.0;
    for pause in [2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
        assert!(!v.keeps_away(at(now), W), "{now}");
        assert!(v.placed(W) && !v.placed(W));
        assert!(v.keeps_away(at(now + 1e6), W), "while it is tried nobody else goes there");
        v.tried(at(now), W);
        assert!(v.keeps_away(at(now + pause - 0.1), W), "{pause}");
        now += pause;
    }
}

#[test]
fn off_is_off() {
    let mut v = Vitals::new(VitalSettings::OFF);
    v.add(W);
    v.sent(at(0.0), W, Duration::from_secs(10));
    assert!(!is_stalled(&mut v, at(1e6)) && v.next_look().is_none());
    assert!((0..100).all(|_| !v.fault(at(0.0), W, false)));
    // Who isn't known has no vitals, and nothing panics.
    let nobody = WorkerId(9);
    v.sent(at(0.0), nobody, Duration::ZERO);
    v.ended(at(0.0), nobody);
    v.tried(at(0.0), nobody);
    assert!(!v.fault(at(0.0), nobody, true) && !v.heard(at(0.0), nobody) && !v.placed(nobody));
}
