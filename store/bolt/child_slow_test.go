//go:build slow

package bolt

import (
	"bufio"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/store"
)

// TestKill kills a process that writes, opens its database and looks for every unit that the process acknowledged.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.db")
	acked := make(map[string]bool)
	for range 4 {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		child.Env = append(os.Environ(), childEnv+"="+path)
		stdout, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		enough := 200 + rand.IntN(1500)
		said := 0
		for in := bufio.NewScanner(stdout); in.Scan(); {
			acked[in.Text()] = true
			// Lines that the child printed before the kill count even if they are read after it.
			if said++; said == enough {
				if err := child.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := child.Wait(); err == nil || said < enough {
			t.Fatalf("child ended by itself after %d lines: %v", said, err)
		}
	}
	audit(t, open(t, path, Config{}), acked)
}

func audit(t *testing.T, s *Store, acked map[string]bool) {
	t.Helper()
	times := make(map[string]int)
	for after := uint64(0); ; {
		page, err := s.Steps().Conversations(t.Context(), "", after, 1000, childNow)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Conversations {
			entries, err := s.Steps().Transcript(t.Context(), c.Key, 0, 1<<30)
			if err != nil || uint64(len(entries)) != c.Entries {
				t.Fatalf("transcript of %v has %d entries, its row says %d: %v", c.Key, len(entries), c.Entries, err)
			}
			for _, e := range entries {
				times[e.MessageID]++
			}
		}
		if after = page.Next; after == 0 {
			break
		}
	}
	for id, n := range times {
		if n != 1 {
			t.Errorf("message %s was applied %d times", id, n)
		}
	}
	heads := make(map[string]string)
	due, _, err := s.Records().Due(t.Context(), "work", childNow, nil, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range due {
		if heads[rec.Lane] != "" {
			t.Errorf("lane %s has two heads", rec.Lane)
		}
		heads[rec.Lane] = rec.Key
	}
	counts := make(map[string]int)
	for line := range acked {
		kind, id, _ := strings.Cut(line, " ")
		counts[kind]++
		switch kind {
		case "card":
			listed, err := s.Cards().List(t.Context(), store.CardQuery{All: []string{"id:" + id, "cap:load"}, Limit: 5, Now: childNow})
			_, heldErr := s.Cards().Held(t.Context(), id, childNow)
			if gone := acked["gone "+id]; err != nil || heldErr != nil || len(listed.Cards) > 1 || gone && len(listed.Cards) != 0 {
				t.Errorf("card %s (gone %v) is listed %d times: %v, %v", id, gone, len(listed.Cards), err, heldErr)
			} else if len(listed.Cards) == 0 {
				// Not listed: the card must have been withdrawn, whether or not that was acknowledged.
				if held, _ := s.Cards().Held(t.Context(), id, childNow); !held.Withdrawn {
					t.Errorf("card %s is not listed", id)
				}
			}
		case "step":
			_, err := s.Steps().FindReplay(t.Context(), "p", id, childNow)
			_, recErr := s.Records().Get(t.Context(), "inbox", id, childNow)
			if err != nil || recErr != nil || times[id] != 1 || heads[id] == "" {
				t.Errorf("step %s: replay %v, record %v, %d entries, due is %q", id, err, recErr, times[id], heads[id])
			}
		case "done":
			if heads[id] != id+"2" {
				t.Errorf("the first record of lane %s ended, but %q is due", id, heads[id])
			}
		case "twice":
			t.Errorf("step %s was applied a second time", id)
		}
	}
	if counts["card"] == 0 || counts["step"] == 0 || counts["gone"] == 0 || counts["done"] == 0 {
		t.Errorf("the children acknowledged too little: %v", counts)
	}
	t.Logf("audited %v", counts)
}
