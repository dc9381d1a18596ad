//! What MySQL and Redis hold in the end.

use std::collections::BTreeMap;

use anyhow::Context;
use shared::reservations::StoredReceipt;

use super::check::Held;
use super::history::Pair;
use crate::verify::{Settings, Stores};

/// Reads everyone's row and receipt, and the capacities.
pub async fn read(settings: &Settings) -> anyhow::Result<[Held; 2]> {
    let mut stores = Stores::connect(settings).await?;
    let held = |by| Held { by, people: BTreeMap::new(), capacities: BTreeMap::new() };
    let (mut mysql, mut redis) = (held("MySQL"), held("Redis"));
    for activity in stores.activity_ids().await? {
        if let Some(recorded) = stores.recorded(activity).await? {
            mysql.capacities.insert(activity, recorded.capacity);
        }
        if let Some(capacity) = stores.reserved(activity).await?.capacity {
            redis.capacities.insert(activity, capacity);
        }
        let mut after = String::new();
        loop {
            let rows = stores.rows_after(activity, &after).await?;
            let Some((last, _)) = rows.last() else { break };
            after = last.as_str().to_owned();
            for (user, row) in rows {
                let row = row.map_err(anyhow::Error::msg).with_context(|| format!("the row of {user}"))?;
                mysql.people.insert(Pair { activity, user }, row);
            }
        }
        let mut cursor = 0;
        loop {
            let (next, page) = stores.receipts_page(activity, cursor).await?;
            for (user, text) in page {
                let receipt: StoredReceipt = text.parse().with_context(|| format!("the receipt of {user:?}"))?;
                redis.people.insert(Pair { activity, user: user.parse()? }, receipt);
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    stores.close().await?;
    Ok([mysql, redis])
}
