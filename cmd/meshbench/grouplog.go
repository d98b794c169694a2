package main

import (
	"errors"
	"os"
	"sync"

	"go.etcd.io/bbolt"
)

// grouped hands what many senders want written to one goroutine, which commits all that has queued at once: the
// plainest group commit there is.
type grouped struct {
	queue  chan waiting
	worker sync.WaitGroup
	close  func() error
}

type waiting struct {
	puts []put
	done chan error
}

// put is one row.
type put struct{ bucket, key, value []byte }

// mostAtOnce bounds a group, as store/bolt bounds its own.
const mostAtOnce = 1024

func newGrouped(commit func([]waiting) error, closeFile func() error) *grouped {
	g := &grouped{queue: make(chan waiting, mostAtOnce), close: closeFile}
	g.worker.Go(func() {
		var group []waiting
		for w := range g.queue {
			group = append(group[:0], w)
			for more := true; more && len(group) < mostAtOnce; {
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
func (g *grouped) write(puts ...put) error {
	w := waiting{puts: puts, done: make(chan error, 1)}
	g.queue <- w
	return <-w.done
}

// stop writes what has queued and closes the file. Nobody may write any more.
func (g *grouped) stop() error {
	close(g.queue)
	g.worker.Wait()
	return g.close()
}

var (
	bucketEntries = []byte("entries")
	bucketRows    = []byte("rows")
)

// openBare opens a bbolt file with two buckets and the engine's own options.
func openBare(path string) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: 1 << 30})
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

// groupedBolt commits groups to a bbolt file, one transaction each.
func groupedBolt(path string) (*grouped, error) {
	db, err := openBare(path)
	if err != nil {
		return nil, err
	}
	return newGrouped(func(group []waiting) error {
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

// groupedLog appends groups to a file and syncs its data: the least that durability can cost.
func groupedLog(path string) (*grouped, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	var buf []byte
	return newGrouped(func(group []waiting) error {
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
