// Package atomicfile replaces whole files: after a crash, the file is either the old one or the new one, never a mix.
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

// Write replaces the file at path with data, mode 0600. When it returns nil, the content is durable, and also the name
// as far as [SyncDir] makes it durable.
func Write(path string, data []byte) error {
	return WriteFunc(path, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// WriteFunc writes a file like [Write], with the content that fill writes. If fill fails, the file at path is
// unchanged.
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

// WriteNew writes a new file like [Write]. If the file exists already, the error matches fs.ErrExist, and the file is
// unchanged.
func WriteNew(path string, data []byte) error {
	if _, err := os.Lstat(path); err == nil {
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	temp := path + "." + rand.Text() + ".tmp"
	defer os.Remove(temp)
	if err := Write(temp, data); err != nil {
		return err
	}
	if err := os.Link(temp, path); err != nil { // unlike a rename, a link never replaces a file
		return err
	}
	SyncDir(filepath.Dir(path))
	return nil
}

// WriteIn writes a file like [Write], inside root. It refuses symbolic links that lead out of root. Only the content is
// durable: a caller that needs a durable name must sync the directory.
func WriteIn(root *os.Root, name string, data []byte) error {
	temp := path.Join(path.Dir(name), "."+path.Base(name)+".tmp")
	if err := root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // a file there may be somebody else's link, through which WriteIn must not write
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

// SyncDir makes the names in a directory durable if the system supports that. Windows does not.
func SyncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		d.Sync()
		d.Close()
	}
}
