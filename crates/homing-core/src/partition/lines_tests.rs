//! Lines together: one bound, one order in each, and numbers that are never given out twice.

use super::*;
use crate::hash::Prompt;
use crate::ids::NameId;

const PARTITION: PartitionId = PartitionId(3);
const NAMED: Line = Line::Named(WorkerId(1));
const HOME: Line = Line::Home(WorkerId(1));

fn ask() -> Box<Ask> {
    Box::new(Ask::new(PARTITION, NameId(0), Prompt::default()))
}

fn time(us: u64) -> Time {
    Time::from_micros(us)
}

fn wait(lines: &mut Lines, line: Line, deadline: u64) -> Ticket {
    let ticket = lines.wait(ask(), line, None, time(deadline)).expect("there is room");
    lines.check();
    ticket
}

fn woken(lines: &mut Lines) -> Vec<TicketId> {
    lines.outputs.drain(..).map(|Output::Wake(id)| id).collect()
}

#[test]
fn f42_all_lines_together_have_one_bound() {
    let mut lines = Lines::new(PARTITION, 3);
    let first = wait(&mut lines, Line::Any, 9);
    let second = wait(&mut lines, NAMED, 9);
    let third = wait(&mut lines, HOME, 9);
    for line in [Line::Any, NAMED, HOME, Line::Named(WorkerId(2))] {
        assert!(lines.wait(ask(), line, None, time(9)).is_err(), "{line:?}");
        lines.check();
    }
    // Whoever comes from its place has one.
    let (asked, queued, awake) = lines.leave(second);
    assert!(!awake);
    let second = lines.wait(asked, NAMED, Some(queued), queued.deadline).unwrap();
    assert_eq!(lines.len(), 3);
    for ticket in [first, second, third] {
        let line = ticket.line;
        _ = lines.leave(ticket);
        lines.tidy(line);
        lines.check();
    }
    assert_eq!((lines.len(), lines.any_tied()), (0, false));
}

#[test]
fn f42_those_who_wait_for_one_worker_are_bounded_though_nothing_else_may_wait() {
    let mut lines = Lines::new(PARTITION, 0);
    for w in 0..TIED_MOST {
        let line = Line::Home(WorkerId(w as u32 % 7));
        lines.wait(ask(), line, None, time(9)).map(drop).expect("there is room");
    }
    assert!(lines.wait(ask(), HOME, None, time(9)).is_err());
    lines.check();
}

#[test]
fn r08_in_each_line_the_first_is_woken_and_nobody_stands_before_those_of_another() {
    let mut lines = Lines::new(PARTITION, 10);
    let any = [wait(&mut lines, Line::Any, 9), wait(&mut lines, Line::Any, 9)];
    let named = [wait(&mut lines, NAMED, 9), wait(&mut lines, NAMED, 9)];
    assert!(lines.wake_next(Line::Any) && lines.wake_next(NAMED));
    assert!(!lines.wake_next(Line::Any) && !lines.wake_next(NAMED), "one is awake at a time");
    assert!(!lines.wake_next(HOME), "nobody waits there");
    assert_eq!(woken(&mut lines), [any[0].id(), named[0].id()]);
    // In vain: it keeps its place, and the next has a look.
    let [first, second] = named;
    let (asked, queued, awake) = lines.leave(first);
    assert!(awake);
    let first = lines.wait(asked, NAMED, Some(queued), queued.deadline).unwrap();
    assert!(lines.wake_next(NAMED));
    assert_eq!(woken(&mut lines), [second.id()]);
    let (asked, queued, _) = lines.leave(second);
    let second = lines.wait(asked, NAMED, Some(queued), queued.deadline).unwrap();
    assert!(!lines.wake_next(NAMED) && lines.all_tried(NAMED) && !lines.all_tried(Line::Any));
    // Something has changed: from the first on.
    lines.freed(NAMED);
    assert!(lines.wake_next(NAMED));
    assert_eq!(woken(&mut lines), [first.id()]);
    lines.check();
    // Who waits for something else from now on goes to that line's end.
    let (asked, queued, _) = lines.leave(first);
    let moved = lines.wait(asked, Line::Any, Some(queued), queued.deadline).unwrap();
    let last = any.iter().all(|before| before.id() < moved.id());
    assert!(last && moved.line == Line::Any);
    assert_eq!(lines.asks(NAMED).count(), 1);
    for ticket in any.into_iter().chain([second, moved]) {
        _ = lines.leave(ticket);
    }
}

#[test]
fn a_line_goes_with_its_last_and_no_name_is_given_twice() {
    let mut lines = Lines::new(PARTITION, 10);
    let mut names = Vec::new();
    for round in 0..5 {
        let ticket = wait(&mut lines, NAMED, 9);
        names.push(ticket.id());
        assert!(!lines.tidy(NAMED), "somebody waits");
        assert_eq!(lines.tied().collect::<Vec<_>>(), [NAMED]);
        _ = lines.leave(ticket);
        assert!(lines.tidy(NAMED) && lines.is_empty(NAMED), "round {round}");
        assert!(!lines.tidy(NAMED) && !lines.tidy(Line::Any));
        lines.check();
    }
    names.dedup();
    assert_eq!(names.len(), 5, "a late wake-up names nobody who came since");
}

#[test]
fn those_whose_time_is_over_are_woken_in_every_line_a_part_at_a_time() {
    let mut lines = Lines::new(PARTITION, 10);
    let late = wait(&mut lines, Line::Any, 30);
    let tickets: Vec<_> =
        [(NAMED, 10), (Line::Any, 20), (HOME, 5)].map(|(l, d)| wait(&mut lines, l, d)).into();
    assert_eq!(lines.next_deadline(), Some(time(5)));
    lines.wake_overdue(time(4), 9);
    assert_eq!(woken(&mut lines), []);
    lines.wake_overdue(time(20), 2);
    let mut all = woken(&mut lines);
    assert_eq!(all.len(), 2, "no more than may be");
    lines.wake_overdue(time(20), 2);
    all.extend(woken(&mut lines));
    all.sort();
    let mut want: Vec<_> = tickets.iter().map(Ticket::id).collect();
    want.sort();
    assert_eq!((all, lines.next_deadline()), (want, Some(time(30))));
    lines.check();
    for ticket in tickets.into_iter().chain([late]) {
        _ = lines.leave(ticket);
    }
}
