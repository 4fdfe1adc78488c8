//! Makes another product from the template. All ids, names, prices, stock levels, dates and the
//! description are new. The structure, the keys and the settings stay.

use rand::RngExt;
use rand::rngs::SmallRng;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime, UtcOffset};

use super::shape::{Image, Product, Variant, VariantGid};
use super::words::{COLOURS, LOOKS, SIZES, STUFFS, THINGS, VENDORS, WORDS};

/// Ranges of ids in current shops: thirteen digits for products, fourteen for other objects.
const PRODUCT_IDS: std::ops::Range<u64> = 7_000_000_000_000..9_999_999_999_999;
const OTHER_IDS: std::ops::Range<u64> = 40_000_000_000_000..60_000_000_000_000;

pub(super) fn vary(
    template: &Product,
    variants: usize,
    description_bytes: usize,
    random: &mut SmallRng,
    now: OffsetDateTime,
) -> Product {
    let mut product = template.clone();
    let id = random.random_range(PRODUCT_IDS);
    let title =
        format!("{} {} {}", pick(&LOOKS, random), pick(&STUFFS, random), pick(&THINGS, random));
    let created = in_shop_time(now - Duration::seconds(random.random_range(86_400..94_608_000)));
    let updated = in_shop_time(now);
    product.id = id;
    product.admin_graphql_api_id = format!("gid://shopify/Product/{id}");
    product.body_html = description(description_bytes, random);
    product.handle = title.to_lowercase().replace(' ', "-");
    product.tags = format!("{}, {}", pick(&WORDS, random), product.handle.replace('-', ", "));
    product.vendor = pick(&VENDORS, random).to_owned();
    product.published_at = product.published_at.map(|_| created.clone());
    product.variants = (0..variants)
        .map(|position| {
            let like = &template.variants[position % template.variants.len()];
            variant(like, position, &product, &created, &updated, random)
        })
        .collect();
    product.variant_gids = product.variants.iter().map(|it| gid(it, now)).collect();
    for option in &mut product.options {
        (option.id, option.product_id) = (random.random_range(OTHER_IDS), id);
    }
    product.images.iter_mut().for_each(|it| image(it, id, &title, &created, random));
    product.image = product.images.first().cloned();
    (product.title, product.created_at, product.updated_at) = (title, created, updated);
    product
}

fn variant(
    like: &Variant,
    position: usize,
    product: &Product,
    created: &str,
    updated: &str,
    random: &mut SmallRng,
) -> Variant {
    let mut variant = like.clone();
    let (colour, size) = (pick(&COLOURS, random), pick(&SIZES, random));
    let cents = random.random_range(500..30_000);
    variant.id = random.random_range(OTHER_IDS);
    variant.admin_graphql_api_id = format!("gid://shopify/ProductVariant/{}", variant.id);
    variant.product_id = product.id;
    variant.position = position as u32 + 1;
    variant.price = money(cents);
    variant.compare_at_price = like.compare_at_price.as_ref().map(|_| money(cents + cents / 4));
    variant.barcode =
        Some(random.random_range(5_000_000_000_000_u64..5_999_999_999_999).to_string());
    variant.sku =
        format!("{}-{}-{}", product.id % 100_000, &colour[..3], &size[..2]).to_uppercase();
    variant.title = format!("{colour} / {size}");
    (variant.option1, variant.option2) = (Some(colour.to_owned()), Some(size.to_owned()));
    variant.inventory_item_id = random.random_range(OTHER_IDS);
    variant.inventory_quantity = random.random_range(0..200);
    variant.old_inventory_quantity = variant.inventory_quantity + random.random_range(0..3);
    (variant.created_at, variant.updated_at) = (created.to_owned(), updated.to_owned());
    variant
}

fn image(image: &mut Image, product_id: u64, title: &str, created: &str, random: &mut SmallRng) {
    image.id = random.random_range(OTHER_IDS);
    image.admin_graphql_api_id = format!("gid://shopify/ProductImage/{}", image.id);
    image.product_id = product_id;
    image.alt = image.alt.as_ref().map(|_| title.to_owned());
    image.src = format!(
        "https://cdn.shopify.com/s/files/1/0612/7790/4018/files/{:016x}.jpg?v={}",
        random.random::<u64>(),
        random.random_range(1_600_000_000..1_760_000_000)
    );
    image.variant_ids.iter_mut().for_each(|it| *it = random.random_range(OTHER_IDS));
    (image.created_at, image.updated_at) = (created.to_owned(), created.to_owned());
}

fn gid(variant: &Variant, now: OffsetDateTime) -> VariantGid {
    let millisecond = now - Duration::nanoseconds(i64::from(now.nanosecond() % 1_000_000));
    VariantGid {
        admin_graphql_api_id: variant.admin_graphql_api_id.clone(),
        updated_at: rfc3339(millisecond),
    }
}

/// Paragraphs of common shop words. Empty if there is no room for one.
fn description(bytes: usize, random: &mut SmallRng) -> String {
    let mut html = String::with_capacity(bytes + 16);
    while html.len() + 32 < bytes {
        html.push_str("<p>");
        for _ in 0..random.random_range(8..24) {
            html.push_str(pick(&WORDS, random));
            html.push(' ');
            if html.len() + 32 >= bytes {
                break;
            }
        }
        html.push_str(&format!("{}.</p>\n", random.random_range(1..1_000)));
    }
    html
}

fn money(cents: u32) -> String {
    format!("{}.{:02}", cents / 100, cents % 100)
}

/// Formats a date as Shopify does: in the shop's offset, to the second.
fn in_shop_time(at: OffsetDateTime) -> String {
    let second = at - Duration::nanoseconds(i64::from(at.nanosecond()));
    rfc3339(second.to_offset(UtcOffset::from_hms(-5, 0, 0).expect("BUG: a legal offset")))
}

fn rfc3339(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).expect("BUG: a year of four digits")
}

fn pick<'a>(from: &[&'a str], random: &mut SmallRng) -> &'a str {
    from[random.random_range(0..from.len())]
}
