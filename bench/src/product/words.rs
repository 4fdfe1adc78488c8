//! Vocabulary of products: enough words to make products differ, and few enough to make them
//! repetitive, as in a real shop.

#[rustfmt::skip]
pub(super) const LOOKS: [&str; 24] = [
    "Stonewashed", "Brushed", "Vintage", "Organic", "Recycled", "Quilted", "Ribbed", "Glazed",
    "Hand-thrown", "Oversized", "Slim", "Everyday", "Merino", "Waxed", "Pleated", "Smoked",
    "Reclaimed", "Travel", "Classic", "Studio", "Winter", "Coastal", "Heavyweight",
    "Featherlight",
];

#[rustfmt::skip]
pub(super) const STUFFS: [&str; 24] = [
    "Linen", "Cotton", "Oak", "Walnut", "Steel", "Brass", "Ceramic", "Glass", "Leather", "Wool",
    "Canvas", "Denim", "Bamboo", "Cork", "Silk", "Hemp", "Marble", "Copper", "Rattan", "Velvet",
    "Cashmere", "Terracotta", "Enamel", "Suede",
];

#[rustfmt::skip]
pub(super) const THINGS: [&str; 24] = [
    "Throw", "Mug", "Tote", "Chair", "Lamp", "Shirt", "Jacket", "Bowl", "Vase", "Rug", "Cushion",
    "Apron", "Belt", "Wallet", "Planter", "Kettle", "Board", "Scarf", "Backpack", "Candle",
    "Tray", "Mirror", "Teapot", "Blanket",
];

#[rustfmt::skip]
pub(super) const COLOURS: [&str; 16] = [
    "Natural", "Charcoal", "Rust", "Sage", "Navy", "Ivory", "Ochre", "Black", "Clay", "Moss",
    "Slate", "Sand", "Plum", "Teal", "Rose", "Bone",
];

#[rustfmt::skip]
pub(super) const SIZES: [&str; 8] = [
    "XS", "Small", "Medium", "Large", "XL", "2XL", "One size", "Tall",
];

#[rustfmt::skip]
pub(super) const VENDORS: [&str; 12] = [
    "Harbour & Loom", "Northfield", "Atelier Brun", "Kiln Works", "Osprey Supply", "Fjord Home",
    "Pine & Co", "Marlow", "Juniper Goods", "Studio Hexa", "Tidewater", "Common Thread",
];

#[rustfmt::skip]
pub(super) const WORDS: [&str; 96] = [
    "a", "the", "and", "with", "from", "for", "in", "of", "our", "your", "that", "made", "by",
    "hand", "woven", "soft", "warm", "light", "small", "family", "workshop", "every", "piece",
    "is", "finished", "washed", "until", "it", "feels", "right", "natural", "fibres", "breathe",
    "well", "through", "seasons", "pairs", "easily", "table", "kitchen", "bedroom", "travel",
    "outdoors", "weekend", "gift", "lasting", "colour", "dyed", "batches", "slight", "variation",
    "expected", "care", "machine", "wash", "cold", "line", "dry", "do", "not", "bleach", "iron",
    "low", "heat", "dimensions", "approximately", "weight", "grams", "ships", "within", "two",
    "days", "carbon", "neutral", "packaging", "recycled", "paper", "designed", "Lisbon", "Porto",
    "Oslo", "Kyoto", "traditional", "techniques", "modern", "shape", "generous", "fit", "pocket",
    "lining", "seams", "double", "stitched", "guaranteed", "ten", "years",
];
