package mess

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
)

// newSampleDir returns a directory remote with one thread that waits for an executor. The thread is in the given form:
// flat is the form of version 1.
func newSampleDir(t *testing.T, flat bool) (r *dirRemote, ref, received, executing string) {
	t.Helper()
	r = &dirRemote{dir: t.TempDir(), name: "us"}
	other := &dirRemote{dir: r.dir, name: "carol"}
	ref, err := other.create(t.Context(), "", mustParse(t, "- request: {intent: mow the lawn}")[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	place := func(c thread.Code) string { return filepath.Join(r.dir, "exchange", thread.FolderOf(c), ref) }
	received, executing = place(thread.Received), place(thread.Claimed)
	if flat {
		if err := os.Rename(filepath.Join(received, folder.ThreadFileName(0, ref)), received+thread.FileSuffix); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(received); err != nil {
			t.Fatal(err)
		}
	}
	return r, ref, received, executing
}

func (r *dirRemote) claim(t *testing.T, ref string) error {
	t.Helper()
	return r.post(t.Context(), "", ref, mustParse(t, "- status: {re: "+ref+", code: claimed}"))
}

// TestFailedWriteKeepsTheOldFile: the file of version 1 goes only after the new form of the thread is written.
func TestFailedWriteKeepsTheOldFile(t *testing.T) {
	r, ref, received, executing := newSampleDir(t, true)
	if err := os.WriteFile(executing, nil, 0o600); err != nil { // no folder can be created here
		t.Fatal(err)
	}
	if err := r.claim(t, ref); !isRetry(err) {
		t.Errorf("the claim could not be written: %v", err)
	}
	if !exists(received + thread.FileSuffix) {
		t.Fatal("the thread is lost")
	}
	if err := os.Remove(executing); err != nil {
		t.Fatal(err)
	}
	if err := r.claim(t, ref); err != nil || exists(received+thread.FileSuffix) {
		t.Errorf("the second claim: %v", err)
	}
	if v, err := r.view(t.Context(), ref); err != nil || v.holder != "us" || len(v.messages) != 2 {
		t.Errorf("the thread is %+v, %v", v, err)
	}
}

// TestThreadInTwoFolders: a thread with folders in two states, because another tool moved only some of its files, takes
// a message and is in one folder then.
func TestThreadInTwoFolders(t *testing.T) {
	r, ref, received, executing := newSampleDir(t, false)
	if err := os.Mkdir(executing, 0o700); err != nil {
		t.Fatal(err)
	}
	const photo = "att-001-image-photo.png"
	if err := os.WriteFile(filepath.Join(executing, photo), smallPhoto, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.claim(t, ref); err != nil {
		t.Fatal(err)
	}
	if exists(received) || !exists(filepath.Join(executing, photo)) {
		t.Error("the thread is still in two folders, or its photo is lost")
	}
	if v, err := r.view(t.Context(), ref); err != nil || v.holder != "us" || len(v.messages) != 2 {
		t.Errorf("the thread is %+v, %v", v, err)
	}
}

// TestThreadInFewerFiles: a thread that needs fewer files than before loses the rest, whose messages would come again.
func TestThreadInFewerFiles(t *testing.T) {
	r, ref, received, executing := newSampleDir(t, false)
	text, err := os.ReadFile(filepath.Join(received, folder.ThreadFileName(0, ref)))
	if err != nil {
		t.Fatal(err)
	}
	for n, part := range strings.SplitN(string(text), "---\n", 3) {
		if err := os.WriteFile(filepath.Join(received, folder.ThreadFileName(n, ref)), []byte(part), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.claim(t, ref); err != nil {
		t.Fatal(err)
	}
	if v, err := r.view(t.Context(), ref); err != nil || len(v.messages) != 2 {
		t.Errorf("the thread is %+v, %v", v, err)
	}
	for n := range 3 {
		if name := folder.ThreadFileName(n, ref); exists(filepath.Join(executing, name)) != (n == 0) {
			t.Errorf("the file %s is wrong", name)
		}
	}
}

// TestUnfinishedFile: a message waits for a file that another tool is still writing, and is refused if the file remains
// unreadable.
func TestUnfinishedFile(t *testing.T) {
	r, ref, received, _ := newSampleDir(t, false)
	name := filepath.Join(received, folder.ThreadFileName(0, ref))
	if err := os.WriteFile(name, []byte("ref: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.claim(t, ref); !isRetry(err) {
		t.Errorf("a claim while the file is written: %v", err)
	}
	if v, err := r.view(t.Context(), ref); err != nil || v.status != "" {
		t.Errorf("the thread is %+v, %v", v, err)
	}
	if err := os.Chtimes(name, time.Time{}, time.Now().Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := r.claim(t, ref); !thread.IsRefusal(err) || isRetry(err) {
		t.Errorf("a claim after a minute: %v", err)
	}
}

// isRetry reports whether the outbox tries a delivery again that failed with err.
func isRetry(err error) bool {
	e, ok := errors.AsType[*client.SendError](err)
	return ok && e.Retry
}

// TestReusedIDInADirectory: a second request with the id of an earlier one is a thread of its own if its content
// differs. The same request again, after a crash, is the thread that exists.
func TestReusedIDInADirectory(t *testing.T) {
	l, _, _ := newListRemote(t)
	l.remote = &dirRemote{dir: t.TempDir(), name: "us"}
	create := func(intent string) string {
		request := mustParse(t, "- request: {id: water, intent: "+intent+"}")[0].Body
		ref, err := l.findSent(t.Context(), request)
		if ref == "" && err == nil {
			ref, err = l.remote.create(t.Context(), "", request)
		}
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	roses, tulips := create("water the roses"), create("water the tulips")
	if roses == tulips {
		t.Fatalf("both requests are %s", roses)
	}
	if again := create("water the roses"); again != roses {
		t.Errorf("the roses are %s, and again %s", roses, again)
	}
	if again := create("water the tulips"); again != tulips {
		t.Errorf("the tulips are %s, and again %s", tulips, again)
	}
	const special = `"a\n b\t: #", constraints: {location: {lat: 1.50, lng: -2e1, radius_km: 3}}, context: [{json: {a: 1.0, b: "yes", c: null, d: "0x10", e: [], f: {}}}, " x ", ""]`
	if first, again := create(special), create(special); again != first {
		t.Errorf("a request with special values is %s, and again %s", first, again)
	}
}
