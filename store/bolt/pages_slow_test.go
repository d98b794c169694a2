//go:build slow && !race

package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// newDeepDB creates a closed database whose largest buckets have branch pages.
func newDeepDB(t *testing.T) string {
	t.Helper()
	path, small := filepath.Join(t.TempDir(), "deep.db"), filepath.Join(t.TempDir(), "small.db")
	s, err := Open(t.Context(), path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	var faults []error
	for i := range 300 {
		key := store.ConvKey{Peer: "am_peer", ID: fmt.Sprint("conv_", i/3)}
		message := fmt.Sprint("msg_", i)
		_, err := s.Steps().Apply(t.Context(), store.Step{
			Conv:   &store.Conversation{Key: key, Terms: []string{"open"}, Open: true, Body: []byte("{}"), Expires: forEver, Rev: store.Any},
			Append: []store.Entry{{MessageID: message, Raw: storetest.Text(i, 200)}}, Now: now,
			Replay:  &store.Replay{Sender: "am_peer", MessageID: message, Conv: key, Status: 200, Answer: []byte("yes"), Expires: forEver},
			Records: []store.Change{{Record: store.Record{NS: "inbox", Key: message, Terms: []string{"new"}, Body: make([]byte, 50), Expires: forEver}}},
		})
		faults = append(faults, err)
	}
	newCardMix(now).fill(t, s, 100)
	if err := errors.Join(append(faults, s.Close(), compact(t, path, small))...); err != nil {
		t.Fatal(err)
	}
	return small
}

// usedPages returns the offsets in the file of the first page of every node.
func usedPages(t *testing.T, path string) (branches, leaves []int) {
	t.Helper()
	db, err := openOffline(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	whole := readFile(t, path)
	if err := db.View(func(tx *bbolt.Tx) error {
		r := &pageReader{file: bytes.NewReader(whole), size: pageSize, seen: make([]bool, len(whole)/pageSize)}
		var roots []uint64
		if err := r.tree(uint64(tx.Cursor().Bucket().Root()), nil, nil, &visitor{row: func(_ bool, _, value []byte) error {
			roots = append(roots, binary.NativeEndian.Uint64(value))
			return nil
		}}); err != nil {
			return err
		}
		for _, root := range roots {
			if root == 0 {
				continue
			}
			if err := r.tree(root, nil, nil, new(visitor)); err != nil {
				return err
			}
		}
		for n, used := range r.seen {
			at := n * pageSize
			switch {
			case !used || binary.NativeEndian.Uint64(whole[at:]) != uint64(n):
			case binary.NativeEndian.Uint16(whole[at+8:]) == flagBranch:
				branches = append(branches, at)
			default:
				leaves = append(leaves, at)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return branches, leaves
}

// expectDamage checks that neither Check nor Open accepts a file.
func expectDamage(t *testing.T, what string, whole []byte) {
	t.Helper()
	path := write(t, whole)
	if err := Check(t.Context(), path); !errors.Is(err, ErrDamaged) {
		t.Errorf("%s: Check = %v, want ErrDamaged", what, err)
	}
	if s, err := Open(t.Context(), path, Config{}); !errors.Is(err, ErrDamaged) {
		t.Errorf("%s: Open = %v, want ErrDamaged", what, err)
		if err == nil {
			s.Close()
		}
	}
}

// quickCheck is what preflight does with a file that is larger than preflightLimit.
func quickCheck(path string) error {
	db, err := openBolt(path, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer db.Close()
	return catchDamage(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			found, err := checkPages(tx, true)
			if err != nil {
				return err
			}
			return found.compare(tx, true)
		})
	})
}

// TestMissingRows changes the lowest set bit of the number of elements of each page, which hides rows that all stay sound
// (THREATS 49).
func TestMissingRows(t *testing.T) {
	t.Parallel()
	path := newDeepDB(t)
	check(t, path)
	if err := quickCheck(path); err != nil {
		t.Fatal(err)
	}
	branches, leaves := usedPages(t, path)
	if len(branches) < 4 || len(leaves) < 20 {
		t.Fatalf("the database has %d branches and %d leaves", len(branches), len(leaves))
	}
	whole := readFile(t, path)
	for _, at := range append(branches, leaves...) {
		n := binary.NativeEndian.Uint16(whole[at+10:])
		damaged := bytes.Clone(whole)
		binary.NativeEndian.PutUint16(damaged[at+10:], n&(n-1))
		what := fmt.Sprintf("%d of %d elements of page %d", n&(n-1), n, at/pageSize)
		expectDamage(t, what, damaged)
		if err := quickCheck(write(t, damaged)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s, in a large file: %v, want ErrDamaged", what, err)
		}
	}
}

// TestLostWrite brings an older version of a row back, as a disk does that loses a write: every row is sound, and their number
// is right.
func TestLostWrite(t *testing.T) {
	t.Parallel()
	path := newDeepDB(t)
	editFile(t, path, func(tx *txn) error {
		records := bucketRecords.in(tx).raw // not counted
		k, v := records.Cursor().Seek([]byte("\x05inboxmsg_1"))
		return records.Put(k, bucketRecords.seal(k, bytes.Clone(v[:len(v)-sumSize-1])))
	})
	expectDamage(t, "an older row", readFile(t, path))
}

// TestDamagedBranch changes random bits in the head, the elements and the keys of each branch. bbolt's scans panic or read beyond the file
// at some of them, in goroutines of their own, which would end this process. A shorter key that still separates the same rows
// does no harm.
func TestDamagedBranch(t *testing.T) {
	t.Parallel()
	path := newDeepDB(t)
	rows, whole := storedRows(t, path), readFile(t, path)
	branches, _ := usedPages(t, path)
	for _, at := range branches {
		last := pageHead + (int(binary.NativeEndian.Uint16(whole[at+10:]))-1)*elementSize
		end := last + int(binary.NativeEndian.Uint32(whole[at+last:])+binary.NativeEndian.Uint32(whole[at+last+4:])) // of the last key
		for range 60 {
			bit := rand.IntN(8 * end)
			damaged := bytes.Clone(whole)
			damaged[at+bit/8] ^= 1 << (bit % 8)
			if path := write(t, damaged); Check(t.Context(), path) == nil {
				if lost := lostRow(t, path, rows); lost != nil {
					t.Errorf("Check finds nothing after a change of bit %d of page %d, but row %q is lost", bit, at/pageSize, lost)
				}
				continue
			}
			expectDamage(t, fmt.Sprintf("bit %d of page %d", bit, at/pageSize), damaged)
		}
	}
}

// lostRow returns the key of one of rows that a look-up doesn't find in the database at path, or nil.
func lostRow(t *testing.T, path string, rows []storedRow) (lost []byte) {
	t.Helper()
	db, err := openBolt(path, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.View(func(tx *bbolt.Tx) error {
		for _, r := range rows {
			if !bytes.Equal(tx.Bucket([]byte(r.bucket)).Get(r.key), r.stored) {
				lost = r.key
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return lost
}
