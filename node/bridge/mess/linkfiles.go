package mess

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
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

// notFetched is the member of a content entry that says why the file which it names is not here.
const notFetched = "not_fetched"

// foreignFile reads the address of a file that lies with a thread.
func foreignFile(address string) (ref, file string, ok bool) {
	rest, content := strings.CutPrefix(address, "content://")
	ref, file, ok = strings.Cut(rest, "/")
	return ref, file, content && ok && thread.SafeRef.MatchString(ref) && thread.AttachmentName.MatchString(file)
}

// qualifyFiles names the files of a foreign thread as that thread's: under its bare name a file would be one of ours.
func qualifyFiles(b thread.Block, ref string) thread.Block {
	out, _ := b.MapContent(func(_ string, v wire.Value) (wire.Value, error) { // no function that fails
		if file := v.GetStr("file"); thread.AttachmentName.MatchString(file) {
			v = v.Without("file").With("resource", wire.Text("content://"+ref+"/"+file))
		}
		return v, nil
	})
	return out
}

// listForeignFiles lists the files of threads that a block names and whose thread may be meant, by their addresses: thread and name
// of each.
func listForeignFiles(b thread.Block, meant func(ref string) (bool, error)) (files map[string][2]string, err error) {
	files = map[string][2]string{}
	_, err = b.MapContent(func(_ string, v wire.Value) (wire.Value, error) {
		ref, file, ok := foreignFile(v.GetStr("resource"))
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

func (l *link) forgetAhead() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead = nil
}

// fetchFiles fetches files, each or why it cannot be had. The error says that one may be had later.
func (l *link) fetchFiles(ctx context.Context, files map[string][2]string, within time.Duration) (map[string]ownFile, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	out := make(map[string]ownFile, len(files))
	room, later := thread.MaxThread, error(nil)
	for _, uri := range slices.Sorted(maps.Keys(files)) {
		at := files[uri]
		f := ownFile{name: tail(at[1])}
		data, err := []byte(nil), error(nil)
		switch {
		case len(out) >= maxBrought:
			f.lost = "the message names too many files"
		case room <= 0:
			f.lost = "the files of the message are too large together"
		default:
			data, err = l.remote.attachment(ctx, at[0], at[1])
		}
		if err != nil {
			l.b.log.Info("a file of a thread behind a link could not be fetched", "link", l.cfg.Name, "thread", at[0], "file", at[1], "error", err)
			f.lost = whyLost(err)
			if mayCome(err) {
				later = err
			}
		} else if f.lost == "" && len(data) == 0 {
			f.lost = "it is empty"
		}
		if room -= len(data); room < 0 {
			data, f.lost = nil, "the files of the message are too large together"
		}
		if f.lost == "" {
			f.data = data
			_, f.mime = sniff(data)
		}
		out[uri] = f
	}
	return out, later
}

// bring returns the files that a message from behind the link names, by their addresses.
func (l *link) bring(ctx context.Context, conv string, b thread.Block) (map[string]ownFile, error) {
	files, err := listForeignFiles(b, func(ref string) (bool, error) { // of the foreign threads of the conversation
		k, found, err := l.load(ctx, ref)
		return found && k.Conv == conv, err
	})
	if err != nil || len(files) == 0 {
		return nil, err
	}
	out := make(map[string]ownFile, len(files))
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

// tail is the name in the name of an attachment.
func tail(file string) string {
	parts := strings.SplitN(file, "-", 4)
	return parts[len(parts)-1]
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

// linkOf returns the link of an address; nil for none.
func (b *Bridge) linkOf(address string) *link {
	if a, err := bridge.ParseAddress(address); err == nil && a.Kind == Kind {
		if i := slices.IndexFunc(b.links, func(l *link) bool { return l.cfg.Name == a.Link }); i >= 0 {
			return b.links[i]
		}
	}
	return nil
}

// behind returns the link behind which a foreign thread is that ours is about; nil for none.
func (b *Bridge) behind(ctx context.Context, t *thread.Thread, ref string) (*link, error) {
	for _, p := range t.Peers {
		l := b.linkOf(p.Address)
		if l == nil {
			continue
		}
		if k, found, err := l.load(ctx, ref); err != nil || found && k.Conv == p.Conv {
			return l, err
		}
	}
	return nil, nil
}
