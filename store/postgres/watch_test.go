package postgres

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/store"
)

// TestEncodeHints: each notification is below the limit of PostgreSQL, although JSON writes "<" as six bytes.
func TestEncodeHints(t *testing.T) {
	var hints []store.Hint
	for i := range 20 {
		hints = append(hints, store.Hint{NS: "inbox", Key: strings.Repeat("<", 500) + strconv.Itoa(i)})
	}
	got := 0
	for _, payload := range encodeHints("process", hints) {
		var n notification
		if err := json.Unmarshal([]byte(payload), &n); err != nil || n.Lost || len(payload) >= 8000 {
			t.Fatalf("a notification of %d bytes, lost %t: %v", len(payload), n.Lost, err)
		}
		got += len(n.Hints)
	}
	if got != len(hints) {
		t.Errorf("%d of %d hints", got, len(hints))
	}
}
