package exchange

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

func (l *lab) has(ref, file string) bool {
	l.t.Helper()
	_, err := l.Attachment(l.t.Context(), Owner("test"), ref, file)
	if got := statusOf(err); got != http.StatusOK && got != http.StatusNotFound {
		l.t.Fatal(err)
	}
	return err == nil
}

// TestUploadsWithoutAMessageGo: an upload that no message names is removed after a day.
func TestUploadsWithoutAMessageGo(t *testing.T) {
	l := newLab(t)
	ref := l.request("agent", "{intent: look}")
	now := time.Now()
	named, nested, late := l.put(ref, "photo.jpg", "photo"), l.put(ref, "map.txt", "map"), l.put(ref, "late.txt", "late")
	l.do(thread.OwnerID, "- response: {re: "+ref+", content: [{file: {file: "+named+", mime: text/plain, size: 5}}, {json: {map: {file: "+nested+"}}}]}")
	refused := l.put(ref, "more.jpg", "more")
	l.refuse(http.StatusConflict, thread.OwnerID, "- status: {re: "+ref+", code: in_progress, message: "+refused+"}")

	l = labOn(t, l.store)
	for _, at := range []time.Duration{0, keepUploads - time.Minute} {
		if n, err := (uploads{l.records}).removeOld(t.Context(), now.Add(at)); n != 0 || err != nil {
			t.Errorf("after %v: %d were removed, %v", at, n, err)
		}
	}
	if n, err := (uploads{l.records}).removeOld(t.Context(), time.Now().Add(keepUploads)); n != 2 || err != nil {
		t.Errorf("%d were removed, %v; want 2", n, err)
	}
	for file, want := range map[string]bool{named: true, nested: true, late: false, refused: false} {
		if l.has(ref, file) != want {
			t.Errorf("%s is there: %t, want %t", file, !want, want)
		}
	}
	if left := l.keys(NSUploads); len(left) != 0 {
		t.Errorf("marks are left: %v", left)
	}
}

// TestUploadsGoAtTheStart: Run removes old uploads at its start too, so that a machine that runs for an hour a day does
// it as well.
func TestUploadsGoAtTheStart(t *testing.T) {
	l := newLab(t)
	ref := l.request("agent", "{intent: look}")
	file := l.put(ref, "photo.jpg", "photo")
	old := store.Change{Record: store.Record{NS: NSUploads, Key: ref + "/" + file, Body: thread.Encode(uploadMark{time.Now().Add(-keepUploads)}), Terms: []string{ref}}, IfRev: store.Any}
	if err := l.store.Records().Apply(t.Context(), []store.Change{old}, time.Now()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	eventually(t, "the upload goes", func() bool { return !l.has(ref, file) })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestUploadedAgain: uploading the same file again gives the same attachment, and its day begins again; a different
// file of that name is another attachment. The uploads of a thread are bounded, and are removed with it.
func TestUploadedAgain(t *testing.T) {
	l := newLab(t)
	ref, other := l.request("agent", "{intent: look}"), l.request("agent", "{intent: look again}")
	first := l.put(ref, "photo.jpg", "photo")
	if again := l.put(ref, "photo.jpg", "photo"); again != first {
		t.Errorf("the same file is %s and %s", first, again)
	}
	if another := l.put(ref, "photo.jpg", "another"); another == first {
		t.Errorf("another file is %s too", first)
	}
	l.do(thread.OwnerID, "- status: {re: "+ref+", code: claimed}\n- suggestion: {id: s, type: alternative, re: "+ref+", proposed: {file: "+first+"}, reason: r}")
	for i := len(l.keys(NSUploads)); i < maxUploads; i++ {
		l.put(ref, fmt.Sprint("f", i, ".txt"), "x")
	}
	if _, err := l.Upload(t.Context(), Owner("test"), ref, "more.txt", []byte("x")); statusOf(err) != http.StatusConflict {
		t.Errorf("one too many: %v", err)
	}
	l.put(other, "photo.jpg", "photo")
	l.do("agent", "- cancel: {re: "+ref+"}")
	if err := l.remove(t.Context(), ref, time.Now()); err != nil {
		t.Fatal(err)
	}
	if left := slices.Concat(l.keys(NSUploads), l.keys(NSFiles)); len(left) != 2 || !strings.HasPrefix(left[0], other) {
		t.Errorf("left: %v", left)
	}
}

// hookedStore calls do before a file is removed.
type hookedStore struct {
	store.Store
	do func()
}

type hookedRecords struct {
	store.Records
	do func()
}

func (m hookedStore) Records() store.Records { return hookedRecords{m.Store.Records(), m.do} }

func (m hookedRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	for _, c := range changes {
		if c.Delete && c.Record.NS == NSFiles {
			m.do()
		}
	}
	return m.Records.Apply(ctx, changes, now)
}

// TestUploadIsNamedAtTheLastMoment: a message that names an upload at the moment of its removal keeps it.
func TestUploadIsNamedAtTheLastMoment(t *testing.T) {
	l := newLab(t)
	ref := l.request("agent", "{intent: look}")
	file := l.put(ref, "photo.jpg", "photo")
	slow := labOn(t, hookedStore{l.store, func() {
		l.do(thread.OwnerID, "- response: {re: "+ref+", content: [{image: {file: "+file+", mime: image/jpeg, size: 5}}]}")
	}})
	if n, err := (uploads{slow.records}).removeOld(t.Context(), time.Now().Add(keepUploads)); n != 0 || err != nil {
		t.Errorf("%d were removed, %v", n, err)
	}
	if !l.has(ref, file) {
		t.Error("the file that the message names is gone")
	}
}

// TestFileUnderUnknownKind: a message of another exchange names a file under a kind of content that is not known here.
// The file gets a name under which it can be read, listed and exported.
func TestFileUnderUnknownKind(t *testing.T) {
	l := newLab(t)
	const uri = "content://2026-01-31-001/att-002-image-a.png"
	b := mustParse(t, "- request: {intent: look, context: [{x: {resource: '"+uri+"'}}]}\n")
	r, err := l.Do(t.Context(), actor("am_peer"), b, Options{Files: map[string]File{uri: {Name: "a.png", Mime: "image/png", Data: []byte("a")}}})
	if err != nil {
		t.Fatal(err)
	}
	ref := r.Created[0]
	old := Attachment{Name: "att-002-x-0-old.png", Data: []byte("a")} // as stored before
	if err := l.KeepAttachment(t.Context(), ref, old); err != nil {
		t.Fatal(err)
	}
	names, err := l.Attachments(t.Context(), ref)
	if err != nil || len(names) != 1 {
		t.Fatalf("the thread has %v, %v", names, err)
	}
	if a, err := l.Attachment(t.Context(), Owner("test"), ref, names[0]); err != nil || string(a.Data) != "a" {
		t.Errorf("%s: %q, %v", names[0], a.Data, err)
	}
}
