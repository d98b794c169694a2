package engine

import (
	"log/slog"
	"sync"
)

// DamageLog logs damaged rows that a call leaves out or leaves in place. It logs each row only once, because strangers
// can repeat such calls as often as they like.
type DamageLog struct {
	log    *slog.Logger
	advice string

	mu   sync.Mutex
	seen map[string]bool // by the text of the error
}

// maxDamageSeen bounds the memory of DamageLog. Further damaged rows are not logged.
const maxDamageSeen = 1000

// NewDamageLog returns a log that ends each message with advice to the operator.
func NewDamageLog(log *slog.Logger, advice string) *DamageLog {
	return &DamageLog{log: log, advice: advice, seen: make(map[string]bool)}
}

// Note logs a damaged row. done completes the sentence "a damaged row was …", and err is the error of reading the row.
func (d *DamageLog) Note(done string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen[err.Error()] || len(d.seen) == maxDamageSeen {
		return
	}
	d.seen[err.Error()] = true
	d.log.Error("a damaged row was "+done+"; "+d.advice, slog.Any("err", err))
}
