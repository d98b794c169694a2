package mess

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
)

// asNobody calls do without access to files that only their owner may read, even if the test runs as root.
func asNobody(do func()) {
	done := make(chan bool)
	go func() {
		defer close(done)
		runtime.LockOSThread()      // never unlocked, so the thread ends with the goroutine
		_ = syscall.Setfsuid(65534) // fails if the test does not run as root, and then the mode of the file is enough
		do()
	}()
	<-done
}

// TestUnreadableFileIsNotSkipped: a file of a shared folder that cannot be read now is an error of the moment, and not
// an empty thread, whose messages would be lost.
func TestUnreadableFileIsNotSkipped(t *testing.T) {
	r, ref, received, _ := newSampleDir(t, false)
	for at := received; at != filepath.Dir(filepath.Dir(r.dir)); at = filepath.Dir(at) { // to the folder of the test
		if err := os.Chmod(at, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(received, folder.ThreadFileName(0, ref))
	if err := os.Chmod(file, 0); err != nil {
		t.Fatal(err)
	}
	asNobody(func() {
		if v, err := r.view(t.Context(), ref); err == nil {
			t.Errorf("the thread is %+v", v)
		}
	})
	if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte("half of a fi"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if v, err := r.view(t.Context(), ref); err != nil || v.status != "" {
		t.Errorf("a file that is not complete yet is %+v, %v", v, err)
	}
}
