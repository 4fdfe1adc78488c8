//! Tests of the operators' command against a real Redis: list, replay, drop and forget.

#[cfg(test)]
mod cell;
#[cfg(test)]
mod console_numbers;
#[cfg(test)]
mod dead;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod queue;
#[cfg(test)]
mod waiting;
