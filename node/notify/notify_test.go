package notify_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func TestMain(m *testing.M) {
	if file := os.Getenv("NOTICES_TO"); file != "" { // this binary is the owner's command
		data, err := io.ReadAll(os.Stdin)
		if err != nil || os.WriteFile(file, data, 0o600) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func records(t *testing.T) store.Records { return database(t).Records() }

func database(t *testing.T) store.Store {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "notices.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return store.Observe(s)
}

func TestContent(t *testing.T) {
	now := time.Date(2026, 2, 21, 10, 0, 0, 0, time.UTC)
	agreed := notify.Notice{Kind: notify.Agreed, Title: "Coffee\x1b[2J", Text: "Sat 10:00 at Blue Bottle", At: now}
	for _, c := range []struct {
		content     notify.Content
		title, text string
	}{
		{"", "Coffee[U+001B][2J", "Sat 10:00 at Blue Bottle"},
		{notify.Summary, "Coffee[U+001B][2J", "Sat 10:00 at Blue Bottle"},
		{notify.None, "an event was agreed", ""},
	} {
		t.Run(string(c.content), func(t *testing.T) {
			recs := records(t)
			box := notify.New(notify.Config{Records: recs, Content: c.content})
			change := box.Change(agreed)
			if err := recs.Apply(t.Context(), []store.Change{change}, now); err != nil {
				t.Fatal(err)
			}
			got, next, err := box.List(t.Context(), "", 10, now)
			if err != nil || next != "" || len(got) != 1 {
				t.Fatalf("List = %v, %q, %v", got, next, err)
			}
			if got[0].Title != c.title || got[0].Text != c.text {
				t.Errorf("notice = %q %q, want %q %q", got[0].Title, got[0].Text, c.title, c.text)
			}
			late := now.Add(31 * 24 * time.Hour)
			if got, _, err := box.List(t.Context(), "", 10, late); err != nil || len(got) != 0 {
				t.Errorf("after 31 days: %v, %v, want none", got, err)
			}
		})
	}
}

// TestHiddenCharacters: a notice shows characters without a visible form by their code, so that nobody can hide or
// turn text in it, and it asks nobody to run a command.
func TestHiddenCharacters(t *testing.T) {
	box := notify.New(notify.Config{Records: records(t), Content: notify.Summary})
	change := box.Change(notify.Notice{Kind: notify.Agreed, Title: "Tea\u202e evil\u200b", Text: "a\tb\x00", At: time.Now()})
	if body := string(change.Record.Body); !strings.Contains(body, `Tea[U+202E] evil[U+200B]`) || !strings.Contains(body, `a b[U+0000]`) {
		t.Errorf("the notice is %s", body)
	}
	if text := (notify.Batch{Notices: []notify.Notice{{Title: "x"}}, More: 2}).Text(); text != "x\nand 2 more\n" {
		t.Errorf("the text is %q", text)
	}
}
