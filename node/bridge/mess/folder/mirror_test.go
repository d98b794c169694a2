package folder

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread/threadtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// folderLab is an exchange whose threads are mirrored in a directory.
type folderLab struct {
	*lab
	m    *Mirror
	root *os.Root
	log  *bytes.Buffer
}

func newFolderLab(t *testing.T) *folderLab {
	t.Helper()
	return newFolderLabOn(t, func(s store.Store) store.Store { return s })
}

// newFolderLabOn is newFolderLab on the store that wrap returns.
func newFolderLabOn(t *testing.T, wrap func(store.Store) store.Store) *folderLab {
	t.Helper()
	l := labOn(t, wrap(newLab(t).store))
	log := &bytes.Buffer{}
	s := &folderLab{lab: l, m: NewMirror(l.Exchange, t.TempDir(), slog.New(slog.NewTextHandler(log, nil))), log: log}
	l.Exchange.Mirror = s.m.Schedule
	var err error
	if s.root, err = OpenLayout(s.m.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.root.Close() })
	return s
}

func (s *folderLab) sync() {
	s.t.Helper()
	if err := s.m.sync(s.t.Context(), s.root); err != nil {
		s.t.Fatal(err)
	}
}

// at returns the place of a thread, or of a file in it.
func (s *folderLab) at(c thread.Code, ref string, more ...string) string {
	return filepath.Join(append([]string{s.m.dir, "exchange", thread.FolderOf(c), ref}, more...)...)
}

func (s *folderLab) file(c thread.Code, ref string) string {
	return s.at(c, ref, ThreadFileName(0, ref))
}

func (s *folderLab) add(name, doc string) {
	s.t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("---\n" + doc); err != nil {
		s.t.Fatal(err)
	}
}

// TestMirrorGoesOn: a thread that cannot be written does not delay the others, and is written when that is possible.
func TestMirrorGoesOn(t *testing.T) {
	s := newFolderLab(t)
	first, second := s.request("agent", "{intent: look}"), s.request("agent", "{intent: listen}")
	if err := os.WriteFile(s.at(thread.Received, first), []byte("in the way"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.m.sync(t.Context(), s.root); err == nil || !strings.Contains(err.Error(), first) {
		t.Errorf("the thread that could not be written: %v", err)
	}
	if !exists(s.file(thread.Received, second)) {
		t.Error("the other thread was not written")
	}
	if err := os.Remove(s.at(thread.Received, first)); err != nil {
		t.Fatal(err)
	}
	s.sync()
	if !exists(s.file(thread.Received, first)) {
		t.Error("it was not written afterwards")
	}
}

// TestMirrorWritesThroughNoLink: the mirror does not write through a link under the temporary name of a file: it might
// lead to another file of the directory, for example of git.
func TestMirrorWritesThroughNoLink(t *testing.T) {
	s := newFolderLab(t)
	ref := s.request("agent", "{intent: look}")
	s.sync()
	config := filepath.Join(s.m.dir, "config")
	if err := os.WriteFile(config, []byte("as it was"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../config", s.at(thread.Received, ref, "."+ThreadFileName(0, ref)+".tmp")); err != nil {
		t.Fatal(err)
	}
	s.do("agent", "- note: {re: "+ref+", text: more}")
	s.sync()
	if data, err := os.ReadFile(config); err != nil || string(data) != "as it was" {
		t.Errorf("config = %q, %v", data, err)
	}
	if data, err := os.ReadFile(s.file(thread.Received, ref)); err != nil || !strings.Contains(string(data), "more") {
		t.Errorf("the thread = %s, %v", data, err)
	}
	// A link in the place of the folder to which a thread would move does not count as a folder.
	if err := os.Mkdir(filepath.Join(s.m.dir, "elsewhere"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../elsewhere", s.at(thread.Claimed, ref)); err != nil {
		t.Fatal(err)
	}
	s.executor("bob")
	s.status("bob", ref, "claimed")
	if err := s.m.sync(t.Context(), s.root); err == nil {
		t.Error("a link was taken for the folder of the thread")
	}
	if entries, err := os.ReadDir(filepath.Join(s.m.dir, "elsewhere")); err != nil || len(entries) != 0 {
		t.Errorf("elsewhere holds %v, %v", entries, err)
	}
}

// TestThreadFileSpeaksOfItsThread: a thread file is about its thread only. It cannot register executors, set routing
// rules or open requests, in anybody's name.
func TestThreadFileSpeaksOfItsThread(t *testing.T) {
	s := newFolderLab(t)
	s.executor("bob", "dig")
	ref := s.request("agent", "{intent: look}")
	s.sync()
	for _, entry := range []string{
		"- config: {executor: {id: bob, capabilities: [lockpicking]}}",
		"- config: {routing: {rules: [{default: [bob]}]}}",
		"- request: {intent: something else}",
		"- status: {re: " + ref + ", code: claimed}\n- config: {executor: {id: bob, capabilities: [lockpicking]}}",
	} {
		s.add(s.file(thread.Received, ref), "from: bob\nreceived: 2026-02-01T10:00:00Z\nMESS:\n"+entry+"\n")
		s.sync()
	}
	s.want(ref, thread.Received)
	if c := s.Executors.Get("bob"); !slices.ContainsFunc(c.Capabilities, func(n thread.Need) bool { return n.ID == "dig" }) {
		t.Errorf("bob can %v", c.Capabilities)
	}
	if rules, err := s.Executors.Rules(); err != nil || rules.Len() != 0 {
		t.Errorf("rules = %v", rules)
	}
	if page, err := s.List(t.Context(), exchange.Owner("test"), "", "", 10); err != nil || len(page.Threads) != 1 {
		t.Errorf("%d threads, %v", len(page.Threads), err)
	}
	messages, err := s.Messages(t.Context(), ref)
	if err != nil || len(messages) != 5 { // the refused messages are kept
		t.Errorf("%d messages, %v", len(messages), err)
	}
}

// TestMirrorReadsAgain: an update that could not be stored, or exceeded a limit, is applied later. A file that cannot
// be parsed is read again when it changes, not in every poll.
func TestMirrorReadsAgain(t *testing.T) {
	b := &failingStore{}
	s := newFolderLabOn(t, func(s store.Store) store.Store { b.Store = s; return b })
	s.executor("bob")
	ref := s.request("agent", "{intent: look, priority: normal}")
	s.sync()
	b.down.Store(true)
	s.add(s.file(thread.Received, ref), "from: bob\nreceived: 2026-02-01T10:00:00Z\nMESS:\n- status: {re: "+ref+", code: claimed}\n")
	_ = s.m.sync(t.Context(), s.root)
	b.down.Store(false)
	s.want(ref, thread.Received)
	s.sync()
	s.want(ref, thread.Claimed)

	buckets := rate.NewBuckets(rate.PerHour(1), 1, 10)
	s.LimitThreads(buckets, 1)
	s.executor("carol")
	buckets.Take("bob", time.Now())
	s.sync()
	s.add(s.file(thread.Claimed, ref), "from: bob\nreceived: 2026-02-01T10:00:00Z\nMESS:\n- status: {re: "+ref+", code: delegated, delegated_to: carol}\n")
	_ = s.m.sync(t.Context(), s.root)
	s.want(ref, thread.Claimed)
	s.LimitThreads(nil, 0)
	s.sync()
	s.want(ref, thread.Delegated)

	bad := "2026-02-01-777"
	if err := os.MkdirAll(s.at(thread.Received, bad), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.file(thread.Received, bad), []byte("ref: half"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.sync()
	}
	if n := strings.Count(s.log.String(), bad); n != 1 {
		t.Errorf("a file that cannot be read is named %d times:\n%s", n, s.log)
	}
	if err := os.WriteFile(s.file(thread.Received, bad), []byte(strings.ReplaceAll(threadtest.Sample, "2026-02-01-001-a7xk", bad)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.sync()
	s.want(bad, thread.Claimed)
}

// TestMirrorLeavesFilesAlone: a file that is too large is not read at all, and one that is still being written is left
// to its writer for a while, but no longer.
func TestMirrorLeavesFilesAlone(t *testing.T) {
	const place = "by the window"
	s := newFolderLab(t)
	large := "2026-02-01-888"
	if err := os.MkdirAll(s.at(thread.Received, large), 0o700); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(threadtest.Sample, "2026-02-01-001-a7xk", large) + "---\nfrom: a\nMESS:\n- note: "
	text += strings.Repeat("x", thread.MaxDocument-len(text)+1)
	for _, want := range []bool{false, true} {
		if want {
			text = text[:thread.MaxDocument]
		}
		if err := os.WriteFile(s.file(thread.Received, large), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if files, err := readFiles(s.root, "exchange/"+thread.FolderOf(thread.Received)+"/"+large, large, false); (err == nil) != want || err == nil && len(files[0]) != len(text) {
			t.Errorf("%d bytes: read %d files, %v", len(text), len(files), err)
		}
	}
	ref := s.request("agent", "{intent: look}")
	s.sync()
	s.add(s.file(thread.Received, ref), "from: carl\nreceived: ")
	s.do("agent", "- note: {re: "+ref+", text: "+place+"}")
	s.sync()
	if data, err := os.ReadFile(s.file(thread.Received, ref)); err != nil || !strings.HasSuffix(string(data), "received: ") {
		t.Errorf("what somebody is writing was written over: %v", err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(s.file(thread.Received, ref), old, old); err != nil {
		t.Fatal(err)
	}
	s.sync()
	s.sync()
	if data, err := os.ReadFile(s.file(thread.Received, ref)); err != nil || !strings.Contains(string(data), place) {
		t.Errorf("it was never written: %v", err)
	}
}

// TestMirrorReadsBeforeItWrites: additions of others just before a write are read first.
func TestMirrorReadsBeforeItWrites(t *testing.T) {
	const place = "by the window"
	s := newFolderLab(t)
	s.executor("bob")
	ref := s.request("agent", "{intent: look}")
	s.sync()
	s.add(s.file(thread.Received, ref), "from: agent\nreceived: 2026-02-01T10:00:00Z\nMESS:\n- note: {re: "+ref+", text: "+place+"}\n")
	s.status("bob", ref, "claimed")
	if err := s.m.flush(t.Context(), s.root); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(s.file(thread.Claimed, ref))
	if err != nil || !strings.Contains(string(data), place) || !strings.Contains(string(data), "status: claimed") {
		t.Errorf("the file = %s, %v", data, err)
	}
}

// TestMirrorThreadInTwoFolders: a thread in two folders, as after a merge, is in one folder after its next change, and
// nothing is lost.
func TestMirrorThreadInTwoFolders(t *testing.T) {
	s := newFolderLab(t)
	s.executor("bob")
	ref := s.request("agent", "{intent: look}")
	s.sync()
	copied := s.at(thread.Claimed, ref)
	if err := os.CopyFS(copied, os.DirFS(s.at(thread.Received, ref))); err != nil {
		t.Fatal(err)
	}
	s.add(s.file(thread.Claimed, ref), "from: bob\nreceived: 2026-02-01T10:00:00Z\nMESS:\n- status: {re: "+ref+", code: claimed}\n")
	if err := os.WriteFile(s.at(thread.Received, ref, "att-001-image-a.png"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.sync()
	s.sync()
	s.want(ref, thread.Claimed)
	if exists(s.at(thread.Received, ref)) || !exists(s.at(thread.Claimed, ref, "att-001-image-a.png")) {
		t.Error("the thread is not one again")
	}
}

// TestMirrorReadsBothFolders: before the mirror puts a thread of two folders into one, it reads what others added in
// either of them.
func TestMirrorReadsBothFolders(t *testing.T) {
	s := newFolderLab(t)
	s.executor("bob")
	ref := s.request("agent", "{intent: look}")
	s.sync()
	for _, c := range []thread.Code{thread.Claimed, thread.Received} {
		if c != thread.Received {
			if err := os.CopyFS(s.at(c, ref), os.DirFS(s.at(thread.Received, ref))); err != nil {
				t.Fatal(err)
			}
		}
		s.add(s.file(c, ref), "from: agent\nreceived: 2026-02-01T10:00:00Z\nMESS:\n- note: {re: "+ref+", text: added in "+string(c)+"}\n")
	}
	s.m.Schedule([]string{ref})
	if err := s.m.flush(t.Context(), s.root); err != nil {
		t.Fatal(err)
	}
	if exists(s.at(thread.Claimed, ref)) {
		t.Error("the thread is still in two folders")
	}
	data, err := os.ReadFile(s.file(thread.Received, ref))
	for _, c := range []thread.Code{thread.Received, thread.Claimed} {
		if text := "added in " + string(c); err != nil || !strings.Contains(string(data), text) {
			t.Errorf("the file lacks %q: %s, %v", text, data, err)
		}
	}
}

// TestPurgedThreadStaysGone: a thread that was removed after its retention does not come back from its file.
func TestPurgedThreadStaysGone(t *testing.T) {
	s := newFolderLab(t)
	s.executor("bob")
	ref := s.request("agent", "{intent: look}")
	s.status("bob", ref, "declined, reason: no")
	s.want(ref, thread.Declined)
	s.sync()
	later := time.Now().Add(90*24*time.Hour + time.Hour)
	if n, err := s.Purge(t.Context(), later); err != nil || n != 1 {
		t.Fatalf("%d threads went, %v", n, err)
	}
	name := s.file(thread.Declined, ref)
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	old := strings.ReplaceAll(string(data), time.Now().UTC().Format("2006-"), "2020-")
	if err := os.WriteFile(name, []byte(strings.ReplaceAll(old, "2020-"+ref[5:], ref)), 0o600); err != nil {
		t.Fatal(err)
	}
	again := NewMirror(s.Exchange, s.m.dir, slog.New(slog.DiscardHandler))
	if err := again.catchUp(t.Context(), s.root); err != nil {
		t.Fatal(err)
	}
	if s.Has(ref) {
		t.Error("it is back")
	}
}

// TestPurge: an ended thread is removed after its retention with everything that belongs to it, and nothing else:
// dependencies of open threads stay, and so does a client id that names a newer thread.
func TestPurge(t *testing.T) {
	s := newFolderLab(t)
	s.executor("bob")
	later := time.Now().Add(90*24*time.Hour + time.Hour)
	old := s.request("agent", "{id: roses, intent: water}")
	s.sync()
	s.add(s.file(thread.Received, old), "from: bob\nreceived: 2026-02-01T10:00:00Z\nMESS:\n- status: {re: "+old+", code: claimed}\n- response: {content: [{image: 'data:image/png;base64,"+strings.Repeat("A", 2*thread.MaxInline)+"'}]}\n")
	s.sync()
	s.do(thread.OwnerID, "- note: {re: "+old+", text: x}")
	if err := s.store.Records().Apply(t.Context(), []store.Change{{Record: store.Record{NS: exchange.NSShared, Key: exchange.SharedKey("am_peer", "conv_1"), Body: wire.MustMarshal(exchange.Shared{Conv: "conv_1", Ref: old})}}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	th := s.thread(old)
	th.Peers = map[string]thread.Peer{"am_peer": {Conv: "conv_1"}}
	if err := s.store.Records().Apply(t.Context(), []store.Change{{Record: store.Record{NS: exchange.NSThreads, Key: th.Ref, Body: wire.MustMarshal(th)}, IfRev: th.Rev}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	s.status("bob", old, "completed")
	first := s.request("agent", "{id: first, intent: dig}")
	then := s.request("agent", "{intent: plant, constraints: {depends_on: [first, "+s.request("agent", "{id: second, intent: buy}")+"]}}")
	s.status("bob", first, "claimed")
	s.status("bob", first, "completed")
	if n, err := s.Purge(t.Context(), later); err != nil || n != 1 {
		t.Fatalf("%d threads went, %v", n, err)
	}
	for _, ns := range []string{exchange.NSThreads, exchange.NSMessages, exchange.NSFiles, exchange.NSSeen, exchange.NSMeta, exchange.NSIDs, exchange.NSShared} {
		for _, key := range s.keys(ns) {
			if strings.Contains(key, old) || key == exchange.SharedKey("am_peer", "conv_1") || key == wire.HashOf("agent", "roses") {
				t.Errorf("%s is kept in %s", key, ns)
			}
		}
	}
	// A dependency that was met stays met for the waiting thread.
	s.status("bob", "second", "claimed")
	s.do("bob", "- response: {re: second, content: [seeds]}")
	s.want(then, thread.Received)

	again := s.request("agent", "{id: roses, intent: water again}")
	s.status("bob", again, "claimed")
	s.status("bob", again, "completed")
	newer := s.request("agent", "{id: roses, intent: water once more}")
	if _, err := s.Purge(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	if s.Has(again) || s.do("agent", "- request: {id: roses, intent: water once more}").Answers[0].Body.GetStr("ref") != newer {
		t.Error("the id does not name the newer thread")
	}
}

// TestMirrorWritesNamedUploads: only uploads that a message names are written to the folder, so that nobody imports
// again what was removed here.
func TestMirrorWritesNamedUploads(t *testing.T) {
	s := newFolderLab(t)
	ref := s.request("agent", "{intent: look}")
	file := s.put(ref, "photo.jpg", "photo")
	s.status(thread.OwnerID, ref, "in_progress")
	s.sync()
	if _, err := os.Stat(s.at(thread.InProgress, ref, file)); err == nil {
		t.Error("an upload without a message lies in the folder")
	}
	s.do(thread.OwnerID, "- response: {re: "+ref+", content: [{image: {file: "+file+", mime: image/jpeg, size: 5}}]}")
	s.sync()
	if data, err := os.ReadFile(s.at(thread.Completed, ref, file)); err != nil || string(data) != "photo" {
		t.Errorf("%q, %v", data, err)
	}
}
