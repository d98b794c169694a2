package mess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// dirRemote is an exchange without a server: a directory of thread files, in which every participant writes the files
// of the threads that it changes. With git, the directory is pulled before it is listed or changed, and pushed after a
// change.
type dirRemote struct {
	dir  string
	name string // our name in the directory
	git  bool
	mu   sync.Mutex // held while the directory is read or changed

	// findEnclosure returns the enclosure, a file of ours in a message, that the address uri names. It returns false if
	// uri names none of our files. It may be nil.
	findEnclosure func(ctx context.Context, uri string) (exchange.Attachment, bool, error)

	took time.Duration // the last scan, under mu
}

func (r *dirRemote) self(context.Context) string { return cmp.Or(r.name, "agentmesh") }

func (r *dirRemote) setSelf(context.Context, string) error { return nil } // the owner chooses the name

// open opens the directory, after a pull if pull is set. Nobody else of this process reads or changes the directory until
// the caller calls done.
func (r *dirRemote) open(ctx context.Context, pull bool) (root *os.Root, done func(), err error) {
	r.mu.Lock()
	if pull {
		err = r.pull(ctx)
	}
	if err == nil {
		root, err = folder.OpenLayout(r.dir) // a pull may have removed empty folders
	}
	if err != nil {
		r.mu.Unlock()
		return nil, nil, err
	}
	return root, func() { root.Close(); r.mu.Unlock() }, nil
}

// Values of the parameter pull of [dirRemote.open].
const (
	asPulled = false
	pullNow  = true
)

// create writes a new thread.
func (r *dirRemote) create(ctx context.Context, _ string, body wire.Value) (string, error) {
	root, done, err := r.open(ctx, pullNow)
	if err != nil {
		return "", client.RetryLater(err)
	}
	defer done()
	req, err := thread.ReadRequest(body, "request", time.Now())
	if err != nil {
		return "", err
	}
	written, files, err := r.extractEnclosures(ctx, thread.Block{{Type: "request", Body: body}}, 1)
	if err != nil {
		return "", client.RetryLater(err)
	}
	now := time.Now().UTC().Round(time.Millisecond)
	ref := thread.NewRandomRef(now, req.ID) // others may write to another clone at the same time
	t := &thread.Thread{
		Ref: ref, ClientID: req.ID, Requester: r.self(ctx), Status: thread.Received, Intent: req.Intent, Priority: req.Priority,
		Created: now, Updated: now, Deadline: req.Deadline, ConfirmBefore: req.ConfirmBefore, Serial: 1,
		History: []thread.Event{{Action: "created", At: now, By: r.self(ctx)}},
	}
	messages := []thread.Message{{Serial: 1, From: r.self(ctx), At: now, Channel: "agentmesh", Mess: written.Tree()}}
	if err := r.store(root, t, messages, files); err != nil {
		return "", client.RetryLater(err)
	}
	if err := r.publish(ctx, ref); err != nil {
		// the next attempt creates it again
		return "", errors.Join(err, root.RemoveAll(path.Join("exchange", thread.FolderOf(t.Status), ref)))
	}
	return ref, nil
}

// resume implements [remote]: a crash may have left a commit in this clone alone.
func (r *dirRemote) resume(ctx context.Context, ref string) error {
	_, done, err := r.open(ctx, pullNow)
	if err != nil {
		return client.RetryLater(err)
	}
	defer done()
	return r.publish(ctx, ref)
}

// load reads a thread. It returns a temporary error if another tool may still be writing the thread.
func (r *dirRemote) load(root *os.Root, ref string) (thread.ParsedFile, error) {
	at, flat := folder.Find(root, ref)
	if at == "" {
		return thread.ParsedFile{}, thread.Missing("the thread is not in the directory")
	}
	f, err := folder.ReadThread(root, at, ref, flat)
	if err != nil && folder.WasJustWritten(root, at, flat) {
		err = client.RetryLater(err)
	}
	return f, err
}

// store writes the files that the newest message of a thread names, and then the thread to the folder of its state.
func (r *dirRemote) store(root *os.Root, t *thread.Thread, messages []thread.Message, files []exchange.Attachment) error {
	at, err := folder.MoveThread(root, thread.FolderOf(t.Status), t.Ref)
	if err != nil {
		return err
	}
	for _, a := range files {
		if err := atomicfile.WriteIn(root, path.Join(at, a.Name), a.Data); err != nil {
			return err
		}
	}
	return folder.WriteThread(root, at, thread.ThreadFiles(t, messages))
}

// post applies our block to a thread of the directory. If the state machine refuses an entry, post writes nothing.
func (r *dirRemote) post(ctx context.Context, _, ref string, b thread.Block) error {
	root, done, err := r.open(ctx, pullNow)
	if err != nil {
		return client.RetryLater(err)
	}
	defer done()
	f, err := r.load(root, ref)
	if err != nil {
		return err
	}
	t, messages := f.Adopt()
	written, _, err := r.extractEnclosures(ctx, b, t.Serial) // the block as the newest message would have it
	if err != nil {
		return client.RetryLater(err)
	}
	if n := len(messages); n > 0 && messages[n-1].From == r.self(ctx) && thread.Digest(messages[n-1].Mess) == thread.Digest(written.Tree()) {
		return r.publish(ctx, ref) // the block was posted before a crash
	}
	now := time.Now().UTC().Round(time.Millisecond)
	for _, e := range b {
		if err := t.Apply(e, r.self(ctx), now); err != nil {
			return err
		}
	}
	t.Serial++
	t.Updated = now
	written, files, err := r.extractEnclosures(ctx, b, t.Serial)
	if err != nil {
		return client.RetryLater(err)
	}
	m := thread.Message{Serial: t.Serial, From: r.self(ctx), At: now, Channel: "agentmesh", Re: []string{ref}, Mess: written.Tree()}
	m.Ref = thread.NewMessageRef(ref, b[0], t.Serial)
	if err := r.store(root, t, append(messages, m), files); err != nil {
		return client.RetryLater(err)
	}
	return r.publish(ctx, ref)
}

// list returns the threads with their stamps.
func (r *dirRemote) list(ctx context.Context) (out []remoteThread, err error) {
	root, done, err := r.open(ctx, pullNow)
	if err != nil {
		return nil, err
	}
	defer done()
	began := time.Now()
	err = folder.Walk(root, func(state string, sub *os.Root, p folder.Place, _, _ int) error {
		if stamp := p.Stamp(sub); stamp.Files > 0 {
			out = append(out, remoteThread{ref: p.Ref, updated: fmt.Sprintf("%s %d %d", state, stamp.Mod.UnixNano(), stamp.Size)})
		}
		return nil
	})
	r.took = time.Since(began)
	return out, err
}

func (r *dirRemote) pause() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return folder.NextPoll(r.took)
}

// view reads a thread. It returns the zero value if the file is not a thread; perhaps the file is not complete yet.
func (r *dirRemote) view(ctx context.Context, ref string) (remoteView, error) {
	root, done, err := r.open(ctx, asPulled)
	if err != nil {
		return remoteView{}, err
	}
	defer done()
	f, err := r.load(root, ref)
	if err != nil && !folder.IsRetryable(err) {
		return remoteView{}, nil // the link skips the thread and checks it again when the file changes
	}
	if err != nil {
		return remoteView{}, err
	}
	t, messages := f.Adopt()
	return remoteView{requester: t.Requester, holder: t.Holder, status: t.Status, messages: messages}, nil
}

// attachment reads a file in the folder of a thread.
func (r *dirRemote) attachment(ctx context.Context, ref, file string) ([]byte, error) {
	root, done, err := r.open(ctx, asPulled)
	if err != nil {
		return nil, err
	}
	defer done()
	at, flat := folder.Find(root, ref)
	if at == "" || flat || !thread.IsAttachmentName(file) {
		return nil, fs.ErrNotExist
	}
	return folder.ReadAttachment(root, path.Join(at, file))
}

func (r *dirRemote) probe(ctx context.Context) error {
	_, err := r.list(ctx)
	return err
}
