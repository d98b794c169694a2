package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// TestShowEntry: an entry that counts decisions of a rule shows their number only if there is more than one.
func TestShowEntry(t *testing.T) {
	for count, want := range map[uint64]string{0: "sent about ann by rule", 1: "sent about ann by rule", 2: "sent 2 times until "} {
		var out bytes.Buffer
		a := &app{UI: terminal.UI{Out: &out}}
		a.showEntry(acl.AuditEntry{N: 7, At: time.Now(), Until: time.Now(), Kind: "sent", By: "rule", Count: count}, "ann")
		if !strings.Contains(out.String(), want) {
			t.Errorf("an entry with the count %d is shown as %q, want %q in it", count, out.String(), want)
		}
	}
}
