package exchange

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestUploadsWithoutAMessageGo: an upload that no message names is removed after a day.
func TestUploadsWithoutAMessageGo(t *testing.T) {
	l := newLab(t)
	ref := l.request("agent", "{intent: look}")
	now := time.Now()
	named, nested, late := l.put(ref, "photo.jpg", "photo"), l.put(ref, "map.txt", "map"), l.put(ref, "late.txt", "late")
	l.do(thread.OwnerID, "- response: {re: "+ref+", content: [{file: {file: "+named+", mime: text/plain, size: 5}}, {json: {map: {file: "+nested+"}}}]}")
	refused := l.put(ref, "more.jpg", "more")
	l.refuse(http.StatusConflict, thread.OwnerID, "- status: {re: "+ref+", code: in_progress, message: "+refused+"}")

	for file, want := range map[string]bool{named: true, nested: true, late: false, refused: false} {
		for after, isThere := range map[time.Duration]bool{keepUploads - time.Minute: true, keepUploads + time.Minute: want} {
			_, err := l.records.Get(t.Context(), NSFiles, ref+"/"+file, now.Add(after))
			if (err == nil) != isThere {
				t.Errorf("%s after %v: %v", file, after, err)
			}
		}
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
	for i := range maxUploads - 1 { // another file of the first name waits, too
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
	if left := l.keys(NSFiles); len(left) != 1 || !strings.HasPrefix(left[0], other) {
		t.Errorf("left: %v", left)
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
