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

// The files of a foreign thread lie with it, and what is said there names them (MESS-10). They become files of our thread in
// the unit that takes the message in. A link fetches them where it reads threads, under the thread's ref and the file's name;
// no other address is followed.

const (
	// bringTime bounds the fetch of what one message names, where its reader waits for it: a node waits for 20 s before it
	// takes the next message of a conversation in.
	bringTime = 15 * time.Second
	// patience is up to which pause a message waits for a file that may still come.
	patience = time.Minute
	// maxBrought is how many files of one message are taken over.
	maxBrought = 100
)

// listForeignFiles lists the files of threads that a block names and whose thread may be meant, by their addresses: thread and name
// of each.
func listForeignFiles(b thread.Block, meant func(ref string) (bool, error)) (files map[string][2]string, err error) {
	files = map[string][2]string{}
	_, err = b.MapContent(func(_ string, v wire.Value) (wire.Value, error) {
		ref, file, ok := thread.SplitResource(v.GetStr("resource"))
		if !ok {
			return v, nil
		}
		ok, err := meant(ref)
		if ok {
			files[v.GetStr("resource")] = [2]string{ref, file}
		}
		return v, err
	})
	return files, err
}

// fetchAhead fetches the files that a message in a thread of ours there names, before it is handed in: what is said after it
// must not overtake it. One that may still come has the message wait, for a while.
func (l *link) fetchAhead(ctx context.Context, ref string, b thread.Block) error {
	files, err := listForeignFiles(b, func(at string) (bool, error) { return at == ref, nil })
	if err != nil || len(files) == 0 {
		return err
	}
	got, err := l.fetchFiles(ctx, files, fetchTimeout)
	if err != nil && l.later[ref].pause < patience {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead = got
	return nil
}

// fetchFiles fetches files, each or why it cannot be had. The error says that one may be had later.
func (l *link) fetchFiles(ctx context.Context, files map[string][2]string, within time.Duration) (map[string]exchange.File, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	out := make(map[string]exchange.File, len(files))
	room, later := thread.MaxThread, error(nil)
	for _, uri := range slices.Sorted(maps.Keys(files)) {
		at := files[uri]
		f := exchange.File{Name: thread.AttachmentTail(at[1])}
		data, err := []byte(nil), error(nil)
		switch {
		case len(out) >= maxBrought:
			f.Lost = "the message names too many files"
		case room <= 0:
			f.Lost = "the files of the message are too large together"
		default:
			data, err = l.remote.attachment(ctx, at[0], at[1])
		}
		if err != nil {
			l.log.Info("a file of a thread behind a link could not be fetched", "link", l.cfg.Name, "thread", at[0], "file", at[1], "error", err)
			f.Lost = whyLost(err)
			if mayCome(err) {
				later = err
			}
		} else if f.Lost == "" && len(data) == 0 {
			f.Lost = "it is empty"
		}
		if room -= len(data); room < 0 {
			data, f.Lost = nil, "the files of the message are too large together"
		}
		if f.Lost == "" {
			f.Data = data
			_, f.Mime = thread.Sniff(data)
		}
		out[uri] = f
	}
	return out, later
}

// FetchAll returns the files that a message from behind the link names, by their addresses.
func (l *link) FetchAll(ctx context.Context, conv string, b thread.Block) (map[string]exchange.File, error) {
	files, err := listForeignFiles(b, func(ref string) (bool, error) { return l.Knows(ctx, ref, conv) })
	if err != nil || len(files) == 0 {
		return nil, err
	}
	out := make(map[string]exchange.File, len(files))
	l.mu.Lock()
	for uri := range files {
		if f, ok := l.ahead[uri]; ok {
			out[uri] = f
			delete(files, uri)
		}
	}
	l.mu.Unlock()
	got, _ := l.fetchFiles(ctx, files, bringTime) // what may come later is the owner's to fetch
	maps.Copy(out, got)
	return out, nil
}

// mayCome says whether a file may be had later: the exchange is away, or others have not put it there yet.
func mayCome(err error) bool {
	e, sent := errors.AsType[*client.SendError](err)
	return sent && e.Retry && !errors.Is(err, client.ErrAnswerTooLarge) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, context.DeadlineExceeded)
}

// whyLost says why a file could not be had, without the words of the network or the file system.
func whyLost(err error) string {
	e, sent := errors.AsType[*client.SendError](err)
	_, refused := errors.AsType[*wire.Error](err)
	switch {
	case errors.Is(err, client.ErrAnswerTooLarge):
		return "it is larger than 10 MiB"
	case sent && e.Status != 0 && e.Status != http.StatusOK:
		return "the exchange answers " + http.StatusText(e.Status)
	case sent:
		return "the exchange does not answer as it should"
	case errors.Is(err, fs.ErrNotExist):
		return "it does not lie with the thread"
	case refused:
		return "it " + thread.PublicText(err)
	}
	return "it cannot be read"
}
