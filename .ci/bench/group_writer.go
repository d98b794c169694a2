package main

import (
	"errors"
	"os"
	"sync"

	"go.etcd.io/bbolt"
)

// groupWriter is the simplest possible group commit: one goroutine commits all queued writes together.
type groupWriter struct {
	queue  chan queuedWrite
	worker sync.WaitGroup
	close  func() error
}

type queuedWrite struct {
	puts []put
	done chan error
}

// put is one row to write to a bucket.
type put struct{ bucket, key, value []byte }

// maxGroup bounds a group, as store/bolt bounds its own.
const maxGroup = 1024

// newGroupWriter starts a groupWriter. commit must make a group durable; closeFile closes the file after the last group.
func newGroupWriter(commit func([]queuedWrite) error, closeFile func() error) *groupWriter {
	g := &groupWriter{queue: make(chan queuedWrite, maxGroup), close: closeFile}
	g.worker.Go(func() {
		var group []queuedWrite
		for w := range g.queue {
			group = append(group[:0], w)
			for more := true; more && len(group) < maxGroup; {
				select {
				case w, ok := <-g.queue:
					if more = ok; ok {
						group = append(group, w)
					}
				default:
					more = false
				}
			}
			err := commit(group)
			for _, w := range group {
				w.done <- err
			}
		}
	})
	return g
}

// write returns when the rows are durable.
func (g *groupWriter) write(puts ...put) error {
	w := queuedWrite{puts: puts, done: make(chan error, 1)}
	g.queue <- w
	return <-w.done
}

// stop commits the queued writes and closes the file. The caller must not write afterwards.
func (g *groupWriter) stop() error {
	close(g.queue)
	g.worker.Wait()
	return g.close()
}

var (
	bucketEntries = []byte("entries")
	bucketRows    = []byte("rows")
)

// openBare opens a bbolt file with two buckets and the options of store/bolt, except for a smaller memory map.
func openBare(path string) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: 1 << 30, PageSize: 8 << 10})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketEntries, bucketRows} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func putAll(tx *bbolt.Tx, puts []put) error {
	for _, p := range puts {
		if err := tx.Bucket(p.bucket).Put(p.key, p.value); err != nil {
			return err
		}
	}
	return nil
}

// newBoltWriter returns a groupWriter that commits each group to a bbolt file in one transaction.
func newBoltWriter(path string) (*groupWriter, error) {
	db, err := openBare(path)
	if err != nil {
		return nil, err
	}
	return newGroupWriter(func(group []queuedWrite) error {
		return db.Update(func(tx *bbolt.Tx) error {
			for _, w := range group {
				if err := putAll(tx, w.puts); err != nil {
					return err
				}
			}
			return nil
		})
	}, db.Close), nil
}

// newLogWriter returns a groupWriter that appends to a file and syncs: the least that durability can cost.
func newLogWriter(path string) (*groupWriter, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	var buf []byte
	return newGroupWriter(func(group []queuedWrite) error {
		buf = buf[:0]
		for _, w := range group {
			for _, p := range w.puts {
				buf = append(append(buf, p.key...), p.value...)
			}
		}
		if _, err := f.Write(buf); err != nil {
			return err
		}
		return syncData(f)
	}, f.Close), nil
}
