package engine

import (
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// DamagedAgain is the time after which a sweep looks again at a damaged row, which it leaves in place.
const DamagedAgain = 24 * time.Hour

// SweepRow looks at a card, conversation or record that may be due at now, and removes it if it is over. It returns the time at
// which to look at the row again, or Never. Of a transcript, it removes at most about limit entries and returns how many;
// if others remain, the time is now.
func SweepRow(tx Tx, r Row, now time.Time, limit int) (removed int, due int64, err error) {
	_, decoded, err := r.Decode()
	if err != nil {
		return 0, 0, err
	}
	switch v := decoded.(type) {
	case CardRow:
		switch {
		case v.Live(now):
			return 0, Deadline(v.Expires), nil
		case v.Held(now):
			tx.UnlistCard(v)
			return 0, Nanos(v.ReservedUntil), nil
		}
		return 0, Never, purgeCard(tx, v, now)
	case store.Conversation:
		if IsLive(v.Expires, now) {
			return 0, Deadline(v.Expires), nil
		}
		removed, err := dropConv(tx, v, limit)
		if removed == limit {
			return removed, Nanos(now), err
		}
		return removed, Never, err
	case store.Record:
		if IsLive(v.Expires, now) {
			return 0, Deadline(v.Expires), nil
		}
		return 0, Never, replaceRecord(tx, &v, store.Record{})
	}
	return 0, 0, fmt.Errorf("%w: a sweep met a row of kind %d", store.ErrDamaged, r.Kind)
}
