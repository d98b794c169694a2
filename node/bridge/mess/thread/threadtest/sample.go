package threadtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Sample is a thread file of version 1 as public tools write it. It has unquoted timestamps, a claim, and the key "re"
// both inside of a MESS block and beside one.
const Sample = `ref: 2026-02-01-001-a7xk
client_id: check fridge
requestor: claude-desktop
executor: teague-phone
status: claimed
created: 2026-02-01T10:00:00Z
updated: 2026-02-01 10:05:00
intent: what is in the fridge?
priority: normal
history:
  - action: created
    at: 2026-02-01T10:00:00Z
    by: claude-desktop
  - action: claimed
    at: 2026-02-01T10:05:00Z
    by: teague-phone
---
from: claude-desktop
received: 2026-02-01T10:00:00Z
channel: mcp
MESS:
  - v: 1.0.0
  - request:
      id: check fridge
      intent: what is in the fridge?
      context:
        - dinner for four
        - image: {file: att-001-image-door.jpg, mime: image/jpeg, size: 4}
---
from: exchange
received: 2026-02-01T10:00:00Z
re: check fridge
MESS:
  - ack:
      re: check fridge
      ref: 2026-02-01-001-a7xk
---
from: teague-phone
received: 2026-02-01T10:05:00Z
MESS:
  - status:
      re: 2026-02-01-001-a7xk
      code: claimed
      eta: 5m
`

// WriteThreads writes count threads below dir, into the folder of the given state. Each has the content of [Sample] and
// a ref of its own.
func WriteThreads(tb testing.TB, dir, state string, count int) {
	tb.Helper()
	for i := range count {
		ref := fmt.Sprintf("2026-02-01-%05d", i)
		at := filepath.Join(dir, "exchange", "state="+state, ref)
		if err := os.MkdirAll(at, 0o700); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "000-"+ref+".messe-af.yaml"), []byte(strings.ReplaceAll(Sample, "2026-02-01-001-a7xk", ref)), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}
