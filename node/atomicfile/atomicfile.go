// Package atomicfile replaces files whole: after a crash there is the old file or the new one, never half of it.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// Write replaces the file at path, with mode 0600, by data. When it returns nil, the file and its name are durable.
func Write(path string, data []byte) error {
	return WriteFunc(path, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// WriteFunc is [Write] for what fill writes. If fill fails, the file at path stays as it was.
func WriteFunc(path string, fill func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
		}
	}()
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	SyncDir(filepath.Dir(path))
	return nil
}

// WriteNew is [Write] for a file that must not exist: then the error is fs.ErrExist, and the file stays as it was.
func WriteNew(path string, data []byte) error {
	if _, err := os.Lstat(path); err == nil {
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	temp := path + "." + rand.Text() + ".tmp"
	defer os.Remove(temp)
	if err := Write(temp, data); err != nil {
		return err
	}
	if err := os.Link(temp, path); err != nil { // unlike a rename it never replaces
		return err
	}
	SyncDir(filepath.Dir(path))
	return nil
}

// WriteIn is [Write] beneath a root, whose links lead nowhere else. Only the content is durable: a caller that needs
// the name as well syncs the directory.
func WriteIn(root *os.Root, name string, data []byte) error {
	temp := path.Join(path.Dir(name), "."+path.Base(name)+".tmp")
	if err := root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // a link of somebody else's perhaps, to which nothing is written
	}
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return root.Rename(temp, name)
}

// SyncDir makes the names in a directory durable if the system can. Windows cannot, and there is nothing better to do.
func SyncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		d.Sync()
		d.Close()
	}
}
