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

// Bounds on the owner's own files in an archive, such as hook scripts and schemas.
const (
	maxOwnFiles = 10_000
	maxOwnBytes = 1 << 30
	maxLeftOut  = 50 // files that a manifest names as left out
)

// programFiles are the small files of a data directory that the program writes, or reads by name.
var programFiles = []string{FileKey, FileAge, FileCredential, FileCard, FileConfig, FileInvites, FileMoltSpeakKey, FileMoltSpeakBox}

// isProgramFile reports whether a file belongs to the program. A restore makes such files readable only by the owner.
func isProgramFile(name string) bool {
	return slices.Contains(programFiles, name) || path.Dir(name) == DirRetired || strings.HasPrefix(name, DirACME+"/") || isRelayToken(name)
}

// archiveContent lists the files of an archive besides the manifest and the database.
type archiveContent struct {
	files   []string // slash-separated paths below the data directory
	bytes   int64    // total size of the owner's own files
	leftOut []string // the first files that are not in the archive, each with the reason
}

// collectFiles finds the regular files in a data directory, except transient files, backups, and other data directories
// inside. It does not follow links: a link points outside the directory, or to a file that is in the archive anyway.
func collectFiles(root *os.Root) (archiveContent, error) {
	var c archiveContent
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case name == ".":
			return err
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
		case err != nil:
			c.omit(name, "cannot be read")
		case d.IsDir():
			if isTransient(name) {
				return fs.SkipDir
			}
			if _, err := root.Lstat(path.Join(name, FileDatabase)); err == nil {
				c.omit(name, "another data directory")
				return fs.SkipDir
			}
		case d.Type()&fs.ModeSymlink != 0 && name != FileDatabase: // the archive has a copy of the database
			c.omit(name, "a symbolic link")
		case d.Type().IsRegular() && !isTransient(name):
			c.add(root, name)
		}
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("read the data directory: %w", err)
	}
	return c, nil
}

// omit notes a file that does not go into the archive.
func (c *archiveContent) omit(name, reason string) {
	if len(c.leftOut) < maxLeftOut {
		c.leftOut = append(c.leftOut, fmt.Sprintf("%.200s: %s", name, reason))
	}
}

// add adds a regular file. It silently skips a backup or a deleted file, and notes a file that cannot be read or
// exceeds the bounds.
func (c *archiveContent) add(root *os.Root, name string) {
	size, isBackup, err := inspectFile(root, name)
	switch {
	case errors.Is(err, fs.ErrNotExist) || isBackup:
	case err != nil:
		c.omit(name, "cannot be read")
	case isProgramFile(name):
		c.files = append(c.files, name)
	case len(c.files) >= maxOwnFiles || c.bytes+size > maxOwnBytes:
		c.omit(name, fmt.Sprintf("a backup has room for %d files and %d MiB of your own", maxOwnFiles, maxOwnBytes>>20))
	default:
		c.files, c.bytes = append(c.files, name), c.bytes+size
	}
}

// inspectFile returns the size of a file, and whether it is an archive of this program, judged by its first entry.
func inspectFile(root *os.Root, name string) (size int64, isBackup bool, err error) {
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
	isBackup = n == len(head) && bytes.HasPrefix(head[:], []byte("PK\x03\x04")) && string(head[nameAt:]) == fileManifest
	return info.Size(), isBackup, nil
}

// transientFiles are the files at the top of a data directory that belong to one process or are copied in another way.
var transientFiles = []string{httpapi.SessionsFile, httpapi.SocketFile, FilePID, FileLock, fileManifest, FileDatabase}

// isTransient reports whether a file or folder is not copied into an archive: the lock and pid files, the owner's
// socket, the sessions, the database with the files beside it, a manifest, and temporary files of atomic writes, backup
// and restore.
func isTransient(name string) bool {
	dir, base := path.Split(name)
	if dir == "" && (slices.Contains(transientFiles, base) || strings.HasPrefix(base, FileDatabase+".")) {
		return true
	}
	// An atomic write of NAME makes a temporary file .NAME.* beside it.
	return strings.HasPrefix(base, ".agentmesh-") || (dir == "" || dir == DirRetired+"/") &&
		slices.ContainsFunc(append([]string{FilePID}, programFiles...), func(file string) bool { return strings.HasPrefix(base, "."+file+".") })
}

// isTransientPath reports whether a file, or a folder that contains it, is transient.
func isTransientPath(name string) bool {
	for ; name != "."; name = path.Dir(name) {
		if isTransient(name) {
			return true
		}
	}
	return false
}

// isRelayToken reports whether a file is the token of an AgentRelay link that registered itself.
func isRelayToken(name string) bool {
	return strings.HasPrefix(name, "agentrelay-") && strings.HasSuffix(name, ".json")
}
