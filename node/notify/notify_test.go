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

func records(t *testing.T) store.Records {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "notices.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.Records()
}

func TestClean(t *testing.T) {
	for _, c := range []struct {
		name, in string
		most     int
		want     string
	}{
		{"plain", "Coffee with Ann", 40, "Coffee with Ann"},
		{"white space", "  a \t\n\r b  ", 40, "a b"},
		{"terminal", "\x1b[31mred\x1b[0m\a", 40, "[31mred[0m"},
		{"c1 and bidi", "a\u009b1mb\u202ec\u2066d\u200be", 40, "a1mbcde"},
		{"bad UTF-8", "a\xffb", 40, "ab"},
		{"other scripts", "昼食 Обед", 40, "昼食 Обед"},
		{"cap counts characters", "ääääää", 3, "äää…"},
		{"empty", "\x00\x1b", 40, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := notify.Clean(c.in, c.most); got != c.want {
				t.Errorf("Clean(%q) = %q, want %q", c.in, got, c.want)
			}
		})
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b[2Jb", 10)
	f.Add("0 00", 2) // the blank between two words counts as well
	f.Add("\u202e\xf0\x28", 3)
	f.Fuzz(func(t *testing.T, s string, most int) {
		most = max(1, most%1000)
		got := notify.Clean(s, most)
		if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x202e }) {
			t.Errorf("Clean(%q) = %q", s, got)
		}
		if n := len([]rune(got)); n > most+1 {
			t.Errorf("Clean(%q, %d) has %d characters", s, most, n)
		}
	})
}

func TestContent(t *testing.T) {
	now := time.Date(2026, 2, 21, 10, 0, 0, 0, time.UTC)
	agreed := notify.Notice{Kind: notify.Agreed, Title: "Coffee\x1b[2J", Text: "Sat 10:00 at Blue Bottle", At: now}
	for _, c := range []struct {
		content     notify.Content
		title, text string
	}{
		{"", "Coffee[2J", "Sat 10:00 at Blue Bottle"},
		{notify.Summary, "Coffee[2J", "Sat 10:00 at Blue Bottle"},
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
