//! Searches of a text: for an email address, a phone number, a number and a GraphQL id, each as a whole.

/// Fewest digits of a phone number. Shorter ones are compared with nothing: they occur by chance.
const PHONE_DIGITS_MIN: usize = 7;

/// Digits of a text.
fn digits_of(text: &str) -> String {
    text.chars().filter(char::is_ascii_digit).collect()
}

/// True if a text is an email address, as far as it can name somebody.
pub fn is_email(text: &str) -> bool {
    let parts = text.trim().rsplit_once('@');
    parts.is_some_and(|(name, domain)| !name.is_empty() && !domain.is_empty())
}

/// True if a text is a phone number, as far as it can name somebody. One of few digits, or of one repeated digit, is
/// a placeholder.
pub fn is_phone(text: &str) -> bool {
    let digits = digits_of(text);
    let is_repeated = digits.bytes().all(|digit| digits.as_bytes().first() == Some(&digit));
    digits.len() >= PHONE_DIGITS_MIN && !is_repeated
}

/// True if the text holds this email address as a whole, in letters of any case.
pub(super) fn holds_email(text: &str, email: &str) -> bool {
    let text = text.to_lowercase();
    let email = email.trim().to_lowercase();
    let is_inside =
        |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '%' | '+' | '-');
    let before_is_other = |before: &str| {
        let mut letters = before.chars().rev();
        match letters.next() {
            Some('.') => !letters.next().is_some_and(is_inside),
            Some(letter) => !is_inside(letter),
            None => true,
        }
    };
    let after_is_other = |after: &str| {
        let mut letters = after.chars();
        match letters.next() {
            // The end of a sentence, and not of a longer domain.
            Some('.') => !letters.next().is_some_and(char::is_alphanumeric),
            Some(letter) => !(letter.is_alphanumeric() || letter == '-'),
            None => true,
        }
    };
    occurs(&text, &email, |before, after| before_is_other(before) && after_is_other(after))
}

/// True if the text is this phone number, however it is written, or holds it without other digits around it.
pub(super) fn holds_phone(text: &str, phone: &str) -> bool {
    if !is_phone(phone) {
        return false;
    }
    let digits = digits_of(phone);
    let is_of_number = |letter: char| {
        letter.is_ascii_digit()
            || matches!(letter, '+' | '-' | '.' | '/' | '(' | ')')
            || letter.is_whitespace()
    };
    (text.chars().all(is_of_number) && digits_of(text) == digits) || holds_number(text, &digits)
}

/// True if the text holds this number, which no other digit touches.
pub(super) fn holds_number(text: &str, digits: &str) -> bool {
    occurs(text, digits, |before, after| {
        !before.ends_with(|letter: char| letter.is_ascii_digit())
            && !after.starts_with(|letter: char| letter.is_ascii_digit())
    })
}

/// True if the text holds the GraphQL id of this object, such as `gid://shopify/Customer/12`.
pub(super) fn holds_id(text: &str, object: &str, id: u64) -> bool {
    // Most texts hold none.
    text.contains("gid://")
        && occurs(text, &format!("gid://shopify/{object}/{id}"), |_, after| {
            !after.starts_with(|letter: char| letter.is_ascii_digit())
        })
}

/// True if `part` occurs in the text between a beginning and an end that `suits`.
fn occurs(text: &str, part: &str, suits: impl Fn(&str, &str) -> bool) -> bool {
    if part.is_empty() {
        return false;
    }
    text.match_indices(part).any(|(at, _)| suits(&text[..at], &text[at + part.len()..]))
}
