package bolt

import (
	"log/slog"
	"sync"
)

// damageLog logs damaged rows that a call leaves out or leaves in place. It logs each row only once, because strangers
// can repeat such calls as often as they like.
type damageLog struct {
	log *slog.Logger

	mu   sync.Mutex
	seen map[string]bool // by the text of the error
}

// maxDamageSeen bounds the memory of damageLog. Further damaged rows are not logged, but Check reports them.
const maxDamageSeen = 1000

func newDamageLog(log *slog.Logger) *damageLog {
	return &damageLog{log: log, seen: make(map[string]bool)}
}

// note logs a damaged row, once for each row. done completes the sentence "a damaged row was …", and err is the error
// of reading the row.
func (d *damageLog) note(done string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen[err.Error()] || len(d.seen) == maxDamageSeen {
		return
	}
	d.seen[err.Error()] = true
	d.log.Error("a damaged row was "+done+"; stop the process and run agentmesh check", slog.Any("err", err))
}
