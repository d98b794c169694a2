package folder

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread/threadtest"
)

// TestOverflow: a thread of more than a megabyte continues in a second file, without an envelope.
func TestOverflow(t *testing.T) {
	th := &thread.Thread{Ref: "2026-02-01-001", Requester: "a", Status: thread.Received, Intent: "x", Priority: "normal", History: []thread.Event{{Action: "created", By: "a"}}}
	var messages []thread.Message
	for i := range 30 {
		b := mustParse(t, "- response: {re: x, content: ['"+strings.Repeat("word ", 10_000)+"']}")
		messages = append(messages, thread.Message{Serial: i + 1, From: "bob", Mess: b.Tree()})
	}
	files := thread.ThreadFiles(th, messages)
	if len(files) != 2 || !strings.HasPrefix(files[1].Name, "001-") || strings.Contains(files[1].Content[:200], "history") {
		t.Fatalf("%d files", len(files))
	}
	parsed, err := thread.ParseFiles([]byte(files[0].Content), []byte(files[1].Content))
	if err != nil || len(parsed.Documents) != 60 {
		t.Errorf("%d documents, %v, want 60", len(parsed.Documents), err)
	}
}

// TestMirror: threads are in the folder of their state. Additions of a tool go through the state machine once; refused
// ones are kept and change nothing (MESS-51).
func TestMirror(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	dir := t.TempDir()
	m := NewMirror(l.Exchange, dir, slog.New(slog.DiscardHandler))
	l.Exchange.Mirror = m.Schedule
	root, err := OpenLayout(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	sync := func() {
		t.Helper()
		if err := m.sync(t.Context(), root); err != nil {
			t.Fatal(err)
		}
	}
	ref := l.request("agent", "{id: a, intent: look}")
	sync()
	file := func(state string) string {
		return filepath.Join(dir, "exchange", "state="+state, ref, "000-"+ref+".messe-af.yaml")
	}
	appendTo := func(name, doc string) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString("---\n" + doc); err != nil {
			t.Fatal(err)
		}
	}
	appendTo(file("received"), "from: carl\nreceived: 2026-02-01T10:00:00Z\nMESS:\n- status: {re: "+ref+", code: claimed}\n")
	sync()
	if th := l.want(ref, thread.Claimed); th.Holder != "carl" {
		t.Errorf("holder = %q", th.Holder)
	}
	if _, err := os.Stat(file("received")); err == nil {
		t.Error("the thread is still among the received ones")
	}
	before := l.thread(ref).Serial
	sync()
	sync()
	if th := l.thread(ref); th.Serial != before {
		t.Errorf("the claim was taken in again: %d messages, before %d", th.Serial, before)
	}
	appendTo(file("executing"), "from: eve\nreceived: 2026-02-01T10:00:00Z\nMESS:\n- status: {re: "+ref+", code: completed}\n")
	sync()
	sync()
	if th := l.want(ref, thread.Claimed); th.Serial != before+1 {
		t.Errorf("%d messages, want the refused one kept once (%d)", th.Serial, before+1)
	}
	appendTo(file("executing"), "from: carl\nreceived: half")
	sync()
	l.want(ref, thread.Claimed)
	flat := filepath.Join(dir, "exchange", "state=executing", "2026-02-01-001-a7xk.messe-af.yaml")
	if err := os.WriteFile(flat, []byte(threadtest.Sample), 0o600); err != nil {
		t.Fatal(err)
	}
	sync()
	l.want("2026-02-01-001-a7xk", thread.Claimed)
	if _, err := os.Stat(flat); err == nil {
		t.Error("version 1 is still there")
	}
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "000-2026-02-02-001.messe-af.yaml"), []byte(strings.ReplaceAll(threadtest.Sample, "2026-02-01-001-a7xk", "2026-02-02-001")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "exchange", "state=received", "2026-02-02-001")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "000-2026-02-02-001.messe-af.yaml"), filepath.Join(dir, "exchange", "state=received", "2026-02-02-001.messe-af.yaml")); err != nil {
		t.Fatal(err)
	}
	sync()
	if _, err := l.Thread(t.Context(), exchange.Owner("test"), "2026-02-02-001"); err == nil {
		t.Error("a thread behind a link was read")
	}
}

// TestImportDirectory: a directory is imported in one pass, with lines of progress.
func TestImportDirectory(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	const files = 600
	base := filepath.Join(dir, "exchange", "state=executing")
	if err := os.MkdirAll(base, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		ref := fmt.Sprintf("2026-02-01-%05d", i)
		if err := os.WriteFile(filepath.Join(base, ref+thread.FileSuffix), []byte(strings.ReplaceAll(threadtest.Sample, "2026-02-01-001-a7xk", ref)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	twice := filepath.Join(dir, "exchange", "state=received") // half a move: the same thread in two folders
	if err := os.MkdirAll(twice, 0o700); err != nil {
		t.Fatal(err)
	}
	again := "2026-02-01-00007" + thread.FileSuffix
	if err := os.WriteFile(filepath.Join(twice, again), []byte(strings.ReplaceAll(threadtest.Sample, "2026-02-01-001-a7xk", "2026-02-01-00007")), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := 0
	n, err := Import(t.Context(), l.Exchange, slog.New(slog.DiscardHandler), dir, func(done, all int) {
		if lines++; done > all || all != files+1 {
			t.Errorf("progress %d of %d", done, all)
		}
	})
	if err != nil || n.Threads != files || lines == 0 {
		t.Errorf("%+v, %d lines, %v", n, lines, err)
	}
	if n, err := Import(t.Context(), l.Exchange, slog.New(slog.DiscardHandler), dir, func(int, int) {}); err != nil || n.Threads != 0 || n.Existing != files {
		t.Errorf("again: %+v, %v", n, err)
	}
}

func FuzzThreadFile(f *testing.F) {
	f.Add([]byte(threadtest.Sample))
	f.Add([]byte("ref: 2026-02-01-001\nstatus: pending\nintent: x\n---\nfrom: a\nMESS: []\n"))
	f.Add([]byte("ref: ../../x\nstatus: pending\nintent: x\n"))
	f.Add([]byte("ref: 2026-02-01-999999999-z\nstatus: needs-input\nintent: \"a\\r\\n\\tb\"\nupdated: 1769853600\nexpires: 2026-02-01\nhistory: [{action: x, by: null}]\n---\nfrom: a\nMESS: [{v: 1}, {status: {code: needs-input, message: m}}]\n---\nfrom: b\nre: [x, y]\nMESS: {MESS: [{answer: {text: '|'}}]}\n"))
	f.Add([]byte("{ref: 2026-02-01-abc, status: superseded, intent: '#', executor: exchange, requestor: '---', needed_by: '2026-02-01 10:00', created: 2027-01-01T00:00:00Z}\n---\n{from: ' ', received: 8589934591, MESS: [{ack: {}}, {request: {intent: '- - -', id: 'é…'}}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		parsed, err := thread.ParseFiles(data)
		if err != nil {
			return
		}
		th, messages := parsed.Adopt()
		if !thread.IsThreadRef(th.Ref) || strings.ContainsAny(th.Ref, "/\\\x00") || strings.Contains(th.Ref, "..") {
			t.Fatalf("ref %q was taken", th.Ref)
		}
		var texts [][]byte
		for _, file := range thread.ThreadFiles(th, messages) {
			texts = append(texts, []byte(file.Content))
		}
		again, err := thread.ParseFiles(texts...)
		if err != nil {
			if len(texts) > 1 {
				return
			}
			t.Fatalf("what we wrote is refused: %v\n%s", err, texts[0])
		}
		if again.Thread.Ref != th.Ref || again.Thread.Status != th.Status {
			t.Fatalf("read back %+v, want %+v", again.Thread, th)
		}
	})
}
