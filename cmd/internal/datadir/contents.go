package datadir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// Bounds of what an archive takes of the owner's own files, such as hook scripts and schemas.
const (
	maxOwnFiles = 10_000
	maxOwnBytes = 1 << 30
	maxLeftOut  = 50 // names in a manifest
)

// programFiles lists the small files of a data directory that the program wrote or reads by name.
var programFiles = []string{FileKey, FileAge, FileCredential, FileCard, FileConfig, FileMoltSpeakKey, FileMoltSpeakBox}

// isProgramFile says whether a file is the program's, so that nobody but the owner may read it wherever it is restored.
func isProgramFile(name string) bool {
	return slices.Contains(programFiles, name) || path.Dir(name) == FileRetired || strings.HasPrefix(name, DirACME+"/") || isRelayToken(name)
}

// contents is what an archive holds beside the manifest and the database.
type contents struct {
	files   []string // slash-separated, from the data directory
	bytes   int64    // of the owner's own files
	leftOut []string // what should be there and is not, with the reason
}

// contents finds every regular file beneath the data directory but those of the moment and other backups. Links are
// not followed: what they name lies elsewhere, or is in the archive anyway.
func (h Dir) contents(root *os.Root) (contents, error) {
	var c contents
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case name == ".":
			return err
		case errors.Is(err, fs.ErrNotExist): // gone meanwhile
		case err != nil:
			c.leave(name, "cannot be read")
		case d.IsDir():
			if isTransient(name) {
				return fs.SkipDir
			}
			if _, err := root.Lstat(path.Join(name, FileDatabase)); err == nil {
				c.leave(name, "another data directory")
				return fs.SkipDir
			}
		case d.Type()&fs.ModeSymlink != 0:
			c.leave(name, "a symbolic link")
		case d.Type().IsRegular() && !isTransient(name) && name != httpapi.SocketPointerFile:
			c.take(root, name)
		}
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("read the data directory: %w", err)
	}
	return c, nil
}

func (c *contents) leave(name, why string) {
	if len(c.leftOut) < maxLeftOut {
		c.leftOut = append(c.leftOut, fmt.Sprintf("%.200s: %s", name, why))
	}
}

func (c *contents) take(root *os.Root, name string) {
	size, backup, err := peek(root, name)
	switch {
	case errors.Is(err, fs.ErrNotExist) || backup:
	case err != nil:
		c.leave(name, "cannot be read")
	case isProgramFile(name):
		c.files = append(c.files, name)
	case len(c.files) >= maxOwnFiles || c.bytes+size > maxOwnBytes:
		c.leave(name, fmt.Sprintf("a backup takes %d files and %d MiB of your own", maxOwnFiles, maxOwnBytes>>20))
	default:
		c.files, c.bytes = append(c.files, name), c.bytes+size
	}
}

// peek returns the size of a file that can be read, and whether it is an archive of ours, by its first entry.
func peek(root *os.Root, name string) (size int64, backup bool, err error) {
	f, err := root.Open(name)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, false, err
	}
	const nameAt = 30 // in the header of a zip's entry
	var head [nameAt + len(fileManifest)]byte
	n, err := io.ReadFull(f, head[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, false, err
	}
	backup = n == len(head) && bytes.HasPrefix(head[:], []byte("PK\x03\x04")) && string(head[nameAt:]) == fileManifest
	return info.Size(), backup, nil
}

// transientFiles lists what belongs to one process or is copied in another way, at the top of a data directory.
var transientFiles = []string{httpapi.SessionsFile, httpapi.SocketFile, FilePID, fileManifest, FileDatabase}

// isTransient reports whether a file is of no use to another process: the pid, the owner's socket, the sessions, the
// database with the files beside it, and the unfinished work of writeWhole, backup and restore.
func isTransient(name string) bool {
	dir, base := path.Split(name)
	if dir == "" && (slices.Contains(transientFiles, base) || strings.HasPrefix(base, FileDatabase+".")) {
		return true
	}
	return strings.HasPrefix(base, ".agentmesh-") || (dir == "" || dir == FileRetired+"/") &&
		slices.ContainsFunc(append([]string{FilePID}, programFiles...), func(of string) bool { return strings.HasPrefix(base, "."+of+".") })
}

// isTransientPath says whether a file, or a folder that it lies in, is transient.
func isTransientPath(name string) bool {
	for ; name != "."; name = path.Dir(name) {
		if isTransient(name) {
			return true
		}
	}
	return false
}

// isRelayToken says whether a file of the data directory is the token of a link that registered itself.
func isRelayToken(name string) bool {
	return strings.HasPrefix(name, "agentrelay-") && strings.HasSuffix(name, ".json")
}
