package mess

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Messages of a foreign thread may name files that are stored with that thread (MESS-10). The transaction that stores
// the message also stores these files with our thread. A link fetches them from the exchange, by the ref of the thread
// and the name of the file. It follows no other addresses.

const (
	// receiveFetchTime bounds all fetches while the node handles one message. It is shorter than the 20 s after which
	// the node receives the next message of the conversation even if this one is not handled yet.
	receiveFetchTime = 15 * time.Second
	// lastFilePause is the pause before the last attempt to fetch a missing file. The pauses between attempts grow. If
	// the attempt after a pause of lastFilePause or more fails, the message is received without the file.
	lastFilePause = time.Minute
	// maxFetched bounds the files of one message that are fetched.
	maxFetched = 100
)

// listForeignFiles returns the files of foreign threads that a block names. The keys are the addresses in the block,
// and each value is the ref of a thread and a file name. mayName reports whether the block may name files of a thread.
func listForeignFiles(b thread.Block, mayName func(ref string) (bool, error)) (files map[string][2]string, err error) {
	files = map[string][2]string{}
	_, err = b.MapContent(func(_ string, v wire.Value) (wire.Value, error) {
		ref, file, ok := thread.SplitResource(v.GetStr("resource"))
		if !ok {
			return v, nil
		}
		ok, err := mayName(ref)
		if ok {
			files[v.GetStr("resource")] = [2]string{ref, file}
		}
		return v, err
	})
	return files, err
}

// prefetchFiles fetches the files that a message names, in a thread that we opened. The link calls it before the node
// receives the message, because later messages could overtake the message during a long fetch. If a file may still
// appear, prefetchFiles returns an error, so that the message waits; see lastFilePause.
func (l *link) prefetchFiles(ctx context.Context, ref string, b thread.Block) error {
	files, err := listForeignFiles(b, func(named string) (bool, error) { return named == ref, nil })
	if err != nil || len(files) == 0 {
		return err
	}
	fetched, err := l.fetchFiles(ctx, files, fetchTimeout)
	if err != nil && l.looks[ref].pause < lastFilePause {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prefetched = fetched
	return nil
}

// fetchFiles fetches files; all fetches together take at most timeout. For each file it returns the content, or the
// reason why it is not available. The error means that one of the files may be available later.
func (l *link) fetchFiles(ctx context.Context, files map[string][2]string, timeout time.Duration) (map[string]exchange.File, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out := make(map[string]exchange.File, len(files))
	room, temporary := thread.MaxThread, error(nil)
	for _, uri := range slices.Sorted(maps.Keys(files)) {
		ref, name := files[uri][0], files[uri][1]
		f := exchange.File{Name: thread.AttachmentTail(name)}
		data, err := []byte(nil), error(nil)
		switch {
		case len(out) >= maxFetched:
			f.Failure = "the message names too many files"
		case room <= 0:
			f.Failure = "the files of the message are too large together"
		default:
			data, err = l.remote.attachment(ctx, ref, name)
		}
		if err != nil {
			l.log.Info("a file of a thread behind a link could not be fetched", "link", l.cfg.Name, "thread", ref, "file", name, "error", err)
			f.Failure = explainFetchError(err)
			if isTemporary(err) {
				temporary = err
			}
		} else if f.Failure == "" && len(data) == 0 {
			f.Failure = "it is empty"
		}
		if room -= len(data); room < 0 {
			data, f.Failure = nil, "the files of the message are too large together"
		}
		if f.Failure == "" {
			f.Data = data
			_, f.Mime = thread.Sniff(data)
		}
		out[uri] = f
	}
	return out, temporary
}

// FetchAll returns the files that a message of the foreign exchange names, by address.
func (l *link) FetchAll(ctx context.Context, peer, conv string, b thread.Block) (map[string]exchange.File, error) {
	files, err := listForeignFiles(b, func(ref string) (bool, error) { return l.Knows(ctx, peer, conv, ref) })
	if err != nil || len(files) == 0 {
		return nil, err
	}
	out := make(map[string]exchange.File, len(files))
	l.mu.Lock()
	for uri := range files {
		if f, ok := l.prefetched[uri]; ok {
			out[uri] = f
			delete(files, uri)
		}
	}
	l.mu.Unlock()
	fetched, _ := l.fetchFiles(ctx, files, receiveFetchTime) // the owner can fetch a missing file later
	maps.Copy(out, fetched)
	return out, nil
}

// isTemporary reports whether a file may be available later: the exchange does not answer or does not have it yet.
func isTemporary(err error) bool {
	e, isSendErr := errors.AsType[*client.SendError](err)
	return isSendErr && e.Retry && !errors.Is(err, client.ErrAnswerTooLarge) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, context.DeadlineExceeded)
}

// explainFetchError returns the reason of a failed fetch, without error texts of the network or the file system.
func explainFetchError(err error) string {
	e, isSendErr := errors.AsType[*client.SendError](err)
	_, refused := errors.AsType[*wire.Error](err)
	guard, isGuarded := errors.AsType[*client.GuardError](err)
	switch {
	case isGuarded:
		return guard.Error()
	case errors.Is(err, client.ErrAnswerTooLarge):
		return "it is larger than 10 MiB"
	case isSendErr && e.Status != 0 && e.Status != http.StatusOK:
		return "the server answers " + http.StatusText(e.Status)
	case isSendErr:
		return "the server does not answer as it should"
	case errors.Is(err, fs.ErrNotExist):
		return "it is not stored with the thread"
	case refused:
		return "it " + thread.PublicText(err)
	}
	return "it cannot be read"
}
