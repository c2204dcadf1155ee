//! The graph of jobs, workers and the possible seats between them. Seats can be listed by job and by worker.

use std::ops::Range;

use crate::balance::quota::{Demand, Share};

/// All possible seats, numbered job by job. Each seat is taken or free.
pub struct Graph {
    /// The worker of each seat.
    pub worker: Vec<u32>,
    /// The job of each seat.
    pub job: Vec<u32>,
    /// Whether the seat is given.
    pub taken: Vec<bool>,
    /// Whether the seat keeps an item in place.
    pub gain: Vec<bool>,
    position: Vec<u32>,
    job_start: Vec<u32>,
    worker_start: Vec<u32>,
    by_worker: Vec<u32>,
}

impl Graph {
    /// Creates the graph of all possible seats. The seats in `seated` are taken. O(seats).
    pub fn new(workers: usize, jobs: &[Demand], shares: &[Share], seated: &[Vec<bool>]) -> Self {
        let mut graph = Self {
            worker: Vec::new(),
            job: Vec::new(),
            taken: Vec::new(),
            gain: Vec::new(),
            position: Vec::new(),
            job_start: vec![0],
            worker_start: vec![0; workers + 1],
            by_worker: Vec::new(),
        };
        for (number, (job, share)) in jobs.iter().zip(shares).enumerate() {
            for at in share.candidates() {
                graph.worker.push(job.able[at as usize]);
                graph.job.push(number as u32);
                graph.taken.push(seated[number][at as usize]);
                graph.gain.push(share.gain[at as usize]);
                graph.position.push(at);
            }
            graph.job_start.push(graph.worker.len() as u32);
        }
        graph.index_workers(workers);
        graph
    }

    fn index_workers(&mut self, workers: usize) {
        for &worker in &self.worker {
            self.worker_start[worker as usize + 1] += 1;
        }
        for worker in 0..workers {
            self.worker_start[worker + 1] += self.worker_start[worker];
        }
        let mut fill = self.worker_start.clone();
        self.by_worker = vec![0; self.worker.len()];
        for (seat, &worker) in self.worker.iter().enumerate() {
            let slot = &mut fill[worker as usize];
            self.by_worker[*slot as usize] = seat as u32;
            *slot += 1;
        }
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.worker_start.len() - 1
    }

    /// Returns the number of jobs.
    pub fn jobs(&self) -> usize {
        self.job_start.len() - 1
    }

    /// Returns the range of seat numbers of a job.
    pub fn of_job(&self, job: u32) -> Range<usize> {
        self.job_start[job as usize] as usize..self.job_start[job as usize + 1] as usize
    }

    /// Returns the positions of a worker's seats. `seat_at` returns the seat at a position.
    pub fn of_worker(&self, worker: u32) -> Range<usize> {
        self.worker_start[worker as usize] as usize..self.worker_start[worker as usize + 1] as usize
    }

    /// Returns the number of the seat at a position of `of_worker`.
    pub fn seat_at(&self, place: usize) -> usize {
        self.by_worker[place] as usize
    }

    /// Returns whether each seat is taken, by job and position in `able`.
    pub fn seated(&self, jobs: &[Demand]) -> Vec<Vec<bool>> {
        let mut seated: Vec<Vec<bool>> = jobs.iter().map(|job| vec![false; job.able.len()]).collect();
        for seat in (0..self.taken.len()).filter(|&seat| self.taken[seat]) {
            seated[self.job[seat] as usize][self.position[seat] as usize] = true;
        }
        seated
    }
}
