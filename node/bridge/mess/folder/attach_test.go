package folder

import (
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestMirrorTakesAttachments: an executor that works on the files delivers a photo beside them. Files with other names,
// links, and files that the exchange already has are ignored.
func TestMirrorTakesAttachments(t *testing.T) {
	s := newFolderLab(t)
	ref := s.request("agent", "{intent: look}")
	s.sync()
	for name, data := range map[string]string{"att-002-image-photo.jpg": "\xff\xd8\xffphoto", "other.jpg": "x"} {
		if err := os.WriteFile(s.at(thread.Received, ref, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", s.at(thread.Received, ref, "att-002-file-passwd.txt")); err != nil {
		t.Fatal(err)
	}
	s.add(s.file(thread.Received, ref), "from: bob\nreceived: \"2026-02-01T10:00:00Z\"\nMESS:\n- status: {re: "+ref+", code: claimed}\n- response: {re: "+ref+
		", content: [{image: {file: att-002-image-photo.jpg, mime: image/jpeg, size: 8}}]}\n")
	s.sync()
	a, err := s.Attachment(t.Context(), exchange.Owner("test"), ref, "att-002-image-photo.jpg")
	if err != nil || string(a.Data) != "\xff\xd8\xffphoto" || a.Mime != "image/jpeg" {
		t.Errorf("the photo is %q of %s, %v", a.Data, a.Mime, err)
	}
	names, err := s.Attachments(t.Context(), ref)
	if err != nil || len(names) != 1 {
		t.Errorf("attachments = %v, %v, want the photo alone", names, err)
	}
	if !strings.Contains(s.log.String(), "passwd") {
		t.Errorf("the log does not name the link: %s", s.log)
	}
	if th := s.thread(ref); th.Status != thread.Claimed || th.Holder != "bob" {
		t.Errorf("the thread is %s of %s", th.Status, th.Holder)
	}
	// an existing attachment stays, even if the file changes
	if err := os.WriteFile(s.at(thread.Claimed, ref, "att-002-image-photo.jpg"), []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.add(s.file(thread.Claimed, ref), "from: bob\nreceived: \"2026-02-01T10:01:00Z\"\nMESS:\n- status: {re: "+ref+", code: in_progress}\n")
	s.sync()
	if a, err := s.Attachment(t.Context(), exchange.Owner("test"), ref, "att-002-image-photo.jpg"); err != nil || string(a.Data) == "another" {
		t.Errorf("the photo was swapped: %v", err)
	}
	s.want(ref, thread.InProgress)
}

// TestGrowingFile: a file that has grown beyond the limit when it is read is refused, and not cut at the limit.
func TestGrowingFile(t *testing.T) {
	if data, err := readLimited(strings.NewReader("1234"), 4, fs.ErrInvalid); err != nil || string(data) != "1234" {
		t.Errorf("read %q, %v", data, err)
	}
	if data, err := readLimited(strings.NewReader("12345"), 4, fs.ErrInvalid); err != fs.ErrInvalid {
		t.Errorf("read %q, %v", data, err)
	}
}

// TestAttachmentLimit: a file beside a thread may have the size of an upload.
func TestAttachmentLimit(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for size, fits := range map[int]bool{thread.MaxUpload: true, thread.MaxUpload + 1: false} {
		if err := root.WriteFile("photo.png", make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		if data, err := ReadAttachment(root, "photo.png"); (err == nil) != fits || fits && len(data) != size {
			t.Errorf("%d bytes: read %d, %v", size, len(data), err)
		}
	}
}
