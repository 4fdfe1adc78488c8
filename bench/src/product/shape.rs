//! Fields of a product in Shopify's order. A template with an unknown field is rejected, so that no
//! field is dropped.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Body of `products/update`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Shopify's and documented there")]
pub struct Product {
    pub admin_graphql_api_id: String,
    pub body_html: String,
    pub created_at: String,
    pub handle: String,
    pub id: u64,
    pub product_type: String,
    pub published_at: Option<String>,
    pub template_suffix: Option<String>,
    pub title: String,
    pub updated_at: String,
    pub vendor: String,
    pub status: String,
    pub published_scope: String,
    pub tags: String,
    pub variants: Vec<Variant>,
    pub options: Vec<Choice>,
    pub images: Vec<Image>,
    pub image: Option<Image>,
    pub media: Vec<Value>,
    pub variant_gids: Vec<VariantGid>,
    pub has_variants_that_requires_components: bool,
    pub category: Option<Category>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Shopify's and documented there")]
pub struct Variant {
    pub admin_graphql_api_id: String,
    pub barcode: Option<String>,
    pub compare_at_price: Option<String>,
    pub created_at: String,
    pub id: u64,
    pub inventory_policy: String,
    pub position: u32,
    pub price: String,
    pub product_id: u64,
    pub sku: String,
    pub taxable: bool,
    pub title: String,
    pub updated_at: String,
    pub option1: Option<String>,
    pub option2: Option<String>,
    pub option3: Option<String>,
    pub image_id: Option<u64>,
    pub inventory_item_id: u64,
    pub inventory_quantity: i64,
    pub old_inventory_quantity: i64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Shopify's and documented there")]
pub struct Choice {
    pub name: String,
    pub id: u64,
    pub product_id: u64,
    pub position: u32,
    pub values: Vec<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Shopify's and documented there")]
pub struct Image {
    pub id: u64,
    pub alt: Option<String>,
    pub position: u32,
    pub product_id: u64,
    pub created_at: String,
    pub updated_at: String,
    pub admin_graphql_api_id: String,
    pub width: u32,
    pub height: u32,
    pub src: String,
    pub variant_ids: Vec<u64>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Shopify's and documented there")]
pub struct VariantGid {
    pub admin_graphql_api_id: String,
    pub updated_at: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the names are Shopify's and documented there")]
pub struct Category {
    pub admin_graphql_api_id: String,
    pub name: String,
    pub full_name: String,
}

/// Body for a subscription with `include_fields`.
#[derive(Serialize)]
struct FewFields<'a> {
    id: u64,
    admin_graphql_api_id: &'a str,
    handle: &'a str,
    title: &'a str,
    body_html: &'a str,
    updated_at: &'a str,
    variants: Vec<FewVariantFields<'a>>,
}

#[derive(Serialize)]
struct FewVariantFields<'a> {
    id: u64,
    product_id: u64,
    sku: &'a str,
    price: &'a str,
    inventory_quantity: i64,
}

impl Product {
    pub(super) fn whole(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("BUG: a product is always JSON")
    }

    pub(super) fn few_fields(&self) -> Vec<u8> {
        let variants = self.variants.iter().map(|variant| FewVariantFields {
            id: variant.id,
            product_id: variant.product_id,
            sku: &variant.sku,
            price: &variant.price,
            inventory_quantity: variant.inventory_quantity,
        });
        let few = FewFields {
            id: self.id,
            admin_graphql_api_id: &self.admin_graphql_api_id,
            handle: &self.handle,
            title: &self.title,
            body_html: &self.body_html,
            updated_at: &self.updated_at,
            variants: variants.collect(),
        };
        serde_json::to_vec(&few).expect("BUG: a product is always JSON")
    }
}
