package bolt

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cachedPages returns how many pages of a file are in the cache of the operating system.
func cachedPages(t *testing.T, f *os.File, size int) (n int) {
	t.Helper()
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	resident := make([]byte, size/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(size), uintptr(unsafe.Pointer(&resident[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for _, r := range resident {
		n += int(r & 1)
	}
	return n
}

func TestReadAhead(t *testing.T) {
	const size = 2*readAheadStep + 1<<20
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fsync(int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	all := size / os.Getpagesize()
	if cachedPages(t, f, size) == all {
		t.Skip("this file system keeps every file in memory")
	}
	if err := readAhead(path, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); cachedPages(t, f, size) < all; runtime.Gosched() {
		if time.Since(start) > time.Minute {
			t.Fatalf("%d of %d pages are in the cache", cachedPages(t, f, size), all)
		}
	}
}
