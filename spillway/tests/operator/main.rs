//! The operator's command against a real Redis: what it lists, replays, drops and forgets.

#[cfg(test)]
mod cell;
#[cfg(test)]
mod dead;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod queue;
#[cfg(test)]
mod waiting;
