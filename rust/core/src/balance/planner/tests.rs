//! A board through random changes is at every step what the strategy makes of the whole problem.

use super::*;
use crate::input::Job;
use crate::rendezvous::Mode;
use crate::testing::Random;

fn names(list: &[String]) -> Names {
    Names::new("work item", list.iter().map(String::as_str).collect()).unwrap()
}

/// What a board should hold, as plain maps.
#[derive(Default, Clone)]
struct Model {
    workers: BTreeMap<String, (f64, Runs)>,
    jobs: BTreeMap<String, BTreeMap<String, Option<String>>>,
}

impl Model {
    /// Owners after the strategy saw the whole problem.
    fn place(&mut self, strategy: Strategy) {
        let workers: Vec<&str> = self.workers.keys().map(String::as_str).collect();
        let made: Vec<Job<'_>> = self.jobs.iter().map(|(id, items)| self.job(id, items, &workers)).collect();
        let placed = strategy.place(&workers, &made, Mode::Fast, &Cancel::never()).unwrap();
        let owner = |job: &Job<'_>, at: u32| job.able.get(at as usize).map(|&w| workers[w as usize].to_owned());
        let owners: Vec<Vec<Option<String>>> = made
            .iter()
            .zip(placed)
            .map(|(job, owners)| owners.into_iter().map(|at| owner(job, at)).collect())
            .collect();
        for (items, owners) in self.jobs.values_mut().zip(owners) {
            items.values_mut().zip(owners).for_each(|(old, new)| *old = new);
        }
    }

    fn job<'a>(&self, id: &'a str, items: &'a BTreeMap<String, Option<String>>, workers: &[&str]) -> Job<'a> {
        let can = |name: &&str| self.workers[*name].1.as_ref().is_none_or(|jobs| jobs.contains(id));
        let able: Vec<u32> = (0..).zip(workers).filter(|(_, name)| can(name)).map(|(at, _)| at).collect();
        let position = |owner: &Option<String>| {
            let name = owner.as_deref()?;
            able.iter().position(|&w| workers[w as usize] == name).map(|at| at as u32)
        };
        Job {
            id,
            items: items.keys().map(String::as_str).collect(),
            weights: able.iter().map(|&w| self.workers[workers[w as usize]].0).collect(),
            previous: items.values().map(|owner| position(owner).unwrap_or(NO_OWNER)).collect(),
            able,
        }
    }
}

/// Makes one random change to both.
fn change(random: &mut Random, board: &mut Board, model: &mut Model) {
    let (job, worker) = (format!("j{}", random.below(4)), format!("w{}", random.below(6)));
    let weight = [1.0, 1.0, 2.0, 0.5][random.below(4)];
    let runs = (random.below(3) == 0).then(|| (0..random.below(4)).map(|n| format!("j{n}")).collect());
    let some: Vec<String> = (0..40).filter(|_| random.below(3) == 0).map(|n| format!("i{n:02}")).collect();
    match (random.below(6), model.jobs.get_mut(&job)) {
        (0, None) | (1, None) => {
            board.add_job(&job, names(&some)).unwrap();
            model.jobs.insert(job, some.into_iter().map(|item| (item, None)).collect());
        }
        (0, Some(_)) => {
            board.remove_job(&job).unwrap();
            model.jobs.remove(&job);
        }
        (1, Some(items)) => {
            let new: Vec<String> = some.into_iter().filter(|item| !items.contains_key(item)).collect();
            board.add_items(&job, &names(&new)).unwrap();
            items.extend(new.into_iter().map(|item| (item, None)));
        }
        (2, Some(items)) => {
            let gone: Vec<String> = some.into_iter().filter(|item| items.contains_key(item)).collect();
            board.remove_items(&job, &names(&gone)).unwrap();
            gone.iter().for_each(|item| drop(items.remove(item)));
        }
        (3, _) if model.workers.remove(&worker).is_some() => board.leave(&worker).unwrap(),
        (4, _) if model.workers.contains_key(&worker) => {
            board.reweigh(&worker, weight).unwrap();
            model.workers.get_mut(&worker).unwrap().0 = weight;
        }
        _ if !model.workers.contains_key(&worker) => {
            board.join(&worker, weight, Clone::clone(&runs)).unwrap();
            model.workers.insert(worker, (weight, runs));
        }
        _ => {}
    }
}

fn check_equal(board: &Board, model: &Model) {
    assert_eq!(board.jobs().collect::<Vec<_>>(), model.jobs.keys().collect::<Vec<_>>());
    for (job, items) in &model.jobs {
        let expected: Vec<_> = items.iter().map(|(item, owner)| (item.as_str(), owner.as_deref())).collect();
        let view = board.view(job).unwrap();
        let owner = |number: &u32| view.workers.get(*number as usize).map(String::as_str);
        let found: Vec<_> = view.names.iter().zip(view.owners.iter().map(owner)).collect();
        assert_eq!(found, expected);
    }
}

/// Applies moves to owners, checking that it starts from them.
fn follow(model: &mut Model, placed: &Moves) {
    let name = |number: u32| (number != NO_OWNER).then(|| placed.workers[number as usize].clone());
    for changes in &placed.jobs {
        let items = model.jobs.get_mut(&changes.job).unwrap();
        for change in &changes.moves {
            let owner = items.get_mut(changes.names.get(change.item as usize)).unwrap();
            assert_eq!(*owner, name(change.from));
            assert_ne!(change.from, change.to);
            *owner = name(change.to);
        }
    }
}

fn run(strategy: Strategy, seed: u64, rounds: usize) {
    let mut random = Random::new(seed);
    let (mut board, mut model) = (Board::new(strategy).unwrap(), Model::default());
    for _ in 0..rounds {
        for _ in 0..=random.below(4) {
            change(&mut random, &mut board, &mut model);
        }
        let mut before = model.clone();
        let placed = board.place(None, &Cancel::never()).unwrap();
        model.place(strategy);
        check_equal(&board, &model);
        follow(&mut before, &placed);
        check_equal(&board, &before);
    }
}

#[test]
fn a_board_through_any_changes_is_what_the_strategy_makes_of_the_whole() {
    run(Strategy::EvenlySpread, 31, 1500);
    run(Strategy::Balanced, 32, 1500);
}

#[test]
fn a_budget_is_kept_and_steps_under_it_come_to_rest_after_as_many_moves_as_one() {
    let mut random = Random::new(33);
    for round in 0..200 {
        let (mut board, mut model) = (Board::new(Strategy::Balanced).unwrap(), Model::default());
        (0..30).for_each(|_| change(&mut random, &mut board, &mut model));
        board.place(None, &Cancel::never()).unwrap();
        (0..4).for_each(|_| change(&mut random, &mut board, &mut model));
        let limit = 1 + round % 5;
        let first = board.place(Some(limit), &Cancel::never()).unwrap();
        let (mut steps, mut deferred) = (0, first.deferred);
        while deferred > 0 {
            let placed = board.place(Some(limit), &Cancel::never()).unwrap();
            let moves: usize = placed.jobs.iter().map(|job| job.moves.len()).sum();
            assert_eq!(moves, limit.min(deferred));
            assert_eq!(placed.deferred, deferred - moves);
            deferred = placed.deferred;
            steps += 1;
        }
        assert_eq!(steps, first.deferred.div_ceil(limit));
        assert!(board.place(None, &Cancel::never()).unwrap().jobs.is_empty());
    }
}

#[test]
fn without_a_budget_only_items_that_have_no_able_owner_move() {
    let mut board = Board::new(Strategy::EvenlySpread).unwrap();
    board.join("w1", 1.0, None).unwrap();
    board.add_job("j", names(&["a", "b", "c", "d"].map(String::from))).unwrap();
    board.place(None, &Cancel::never()).unwrap();
    board.join("w2", 1.0, None).unwrap();
    board.add_items("j", &names(&["e".into()])).unwrap();
    let placed = board.place(Some(0), &Cancel::never()).unwrap();
    assert_eq!((placed.jobs[0].moves.len(), placed.deferred), (1, 1));
    assert_eq!(board.owner("j", "e").unwrap(), Some("w2"));
}

#[test]
fn a_number_is_used_again_only_when_nothing_is_with_its_worker() {
    let mut board = Board::new(Strategy::EvenlySpread).unwrap();
    board.join("w1", 1.0, None).unwrap();
    board.add_job("j", names(&["a".into()])).unwrap();
    board.place(None, &Cancel::never()).unwrap();
    board.leave("w1").unwrap();
    board.join("w2", 1.0, None).unwrap();
    let placed = board.place(None, &Cancel::never()).unwrap();
    let change = placed.jobs[0].moves[0];
    assert_eq!((&*placed.workers[change.from as usize], &*placed.workers[change.to as usize]), ("w1", "w2"));
    board.join("w3", 1.0, None).unwrap();
    assert_eq!(board.workers.len(), 2);
}

#[test]
fn what_is_not_there_is_named() {
    let mut board = Board::new(Strategy::Balanced).unwrap();
    board.join("w", 1.0, None).unwrap();
    board.add_job("j", Names::default()).unwrap();
    let errors = [
        board.leave("x").unwrap_err(),
        board.join("w", 1.0, None).unwrap_err(),
        board.reweigh("w", f64::NAN).unwrap_err(),
        board.add_job("j", Names::default()).unwrap_err(),
        board.remove_job("k").unwrap_err(),
        board.owner("j", "a").unwrap_err(),
        board.set_owner("j", "a", "w").unwrap_err(),
        Board::new(Strategy::Rendezvous).unwrap_err(),
    ];
    assert!(errors[..7].iter().all(|e| e.to_string().contains('\'') && e.to_string().contains(';')), "{errors:?}");
}

#[test]
fn a_placement_that_is_cancelled_leaves_the_board_as_it_was() {
    for strategy in [Strategy::Balanced, Strategy::EvenlySpread] {
        let mut board = Board::new(strategy).unwrap();
        (0..40).for_each(|n| board.join(&format!("w{n:02}"), 1.0, None).unwrap());
        for job in 0..400 {
            let items: Vec<String> = (0..300).map(|n| format!("{n:03}")).collect();
            board.add_job(&format!("{job}"), names(&items)).unwrap();
        }
        board.place(None, &Cancel::never()).unwrap();
        (0..9).for_each(|n| board.leave(&format!("w{n:02}")).unwrap());
        board.remove_items("7", &names(&["003".to_owned()])).unwrap();
        let before: Vec<_> = board.jobs().map(|job| board.view(job).unwrap().owners).collect();
        let held: Vec<_> = board.jobs.values().map(|items| items.held.clone()).collect();
        for limit in [None, Some(100)] {
            let asked = std::cell::Cell::new(0);
            for last in (0..).map(|round: u32| 3u32.saturating_pow(round) - 1) {
                asked.set(0);
                let ask = || {
                    asked.set(asked.get() + 1);
                    asked.get() <= last
                };
                let mut copy = Board {
                    strategy: strategy.sticky().unwrap(),
                    workers: board.workers.iter().map(Worker::clone).collect(),
                    number: board.number.clone(),
                    jobs: board.jobs.clone(),
                };
                match copy.place(limit, &Cancel::asking_at_every_report(&ask)) {
                    Ok(_) => break,
                    Err(error) => assert_eq!(error, Error::Cancelled),
                }
                let after: Vec<_> = copy.jobs().map(|job| copy.view(job).unwrap().owners).collect();
                assert!(after == before, "{strategy:?} {limit:?} cancelled at {last}");
                assert!(copy.jobs.values().map(|items| &items.held).eq(&held));
            }
            assert!(asked.get() > 5, "{strategy:?} {limit:?}: it asked {} times", asked.get());
        }
    }
}
