package exchange

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TakeIn takes the documents of a file that are not ours: a new thread as it stands, a known one through the same
// transition rules as everybody (MESS-51).
func (x *Exchange) TakeIn(ctx context.Context, f thread.ParsedFile) error {
	t, err := x.Read(ctx, f.Thread.Ref, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		if !f.Thread.Status.Open() && time.Since(f.Thread.Updated) > x.cfg.Retention {
			return nil // it is kept no longer: the file alone stays
		}
		_, err = x.Adopt(ctx, []thread.ParsedFile{f})
		return err
	}
	if err != nil {
		return err
	}
	messages, err := x.MessagesOf(ctx, t)
	if err != nil {
		return err
	}
	ours := make(map[string]bool) // whether the file has it
	for _, doc := range thread.DocumentsOf(t, messages) {
		ours[thread.Digest(doc.Without("received"))] = false
	}
	missing := len(ours)
	for _, doc := range f.Documents {
		digest := thread.Digest(doc.Without("received"))
		if at, ok := ours[digest]; ok {
			if !at {
				ours[digest] = true
				missing--
			}
			continue
		}
		if err := x.takeDocument(ctx, t, doc); err != nil {
			return err
		}
	}
	if x.Mirror != nil && (missing > 0 || f.Thread.Status != t.Status || f.Thread.Holder != t.Holder) { // a crash came before the files were written
		x.Mirror([]string{t.Ref})
	}
	return nil
}

// takeDocument takes one document of somebody, once.
func (x *Exchange) takeDocument(ctx context.Context, t *thread.Thread, doc wire.Value) error {
	m, b, err := thread.ReadDocument(doc, t)
	if err != nil || thread.IsAck(b) || m.From == thread.ExchangeID {
		return nil // not said by anybody
	}
	mark := store.Change{Record: store.Record{NS: NSSeen, Key: "file/" + t.Ref + "/" + thread.Digest(doc)}}
	if _, err := x.records.Get(ctx, NSSeen, mark.Record.Key, time.Now()); err == nil {
		return nil
	}
	err = foreign(b)
	if err == nil {
		who := WriterOfFiles(m.From)
		_, err = x.Do(ctx, who, b, Options{Lax: true, Re: t.Ref, Records: []store.Change{mark}})
	}
	if e, refused := errors.AsType[*wire.Error](err); !refused || e.Retry {
		return err
	}
	return x.KeepRefused(ctx, t.Ref, m, thread.PublicText(err), nil, mark)
}

// foreign refuses what does not belong into the file of a thread. Whoever writes there may speak in any name, about this
// thread: who is registered on the exchange, with what capabilities, and what else is asked for is said with a key.
func foreign(b thread.Block) error {
	for i, e := range b {
		if e.Type == "request" || e.Type == "config" {
			return thread.Bad(thread.EntryPath(i, e), "does not belong into a thread")
		}
	}
	return nil
}

// KeepRefused keeps a message that the state machine did not allow, in one unit with more: nothing that somebody wrote is
// lost.
func (x *Exchange) KeepRefused(ctx context.Context, ref string, m thread.Message, note string, once *Once, more ...store.Change) error {
	for range maxConflicts {
		tx := x.begin(Actor{ID: m.From, Channel: thread.ChannelRefused, system: true}, Options{Records: more})
		t, err := tx.load(ctx, ref)
		if err != nil {
			return IgnoreMissing(err)
		}
		tx.touch(t)
		b, err := thread.FromTree(m.Mess)
		if err != nil {
			return err
		}
		tx.quiet = true
		tx.add(t, m.From, b)
		x.log.Info("what was said in a thread is not allowed", "thread", ref, "reason", note)
		if err := tx.remember(once); err != nil {
			return err
		}
		if err := tx.commit(ctx); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return nil
}

// Attachments lists the files of a thread, but for uploads that no message names.
func (x *Exchange) Attachments(ctx context.Context, ref string) ([]string, error) {
	var names []string
	marks, err := uploads{x.records}.marks(ctx, ref, time.Now())
	if err != nil {
		return nil, err
	}
	for after := ref + "/"; ; {
		page, err := x.records.List(ctx, NSFiles, "", after, 100, time.Now())
		if err != nil {
			return nil, err
		}
		for _, rec := range page.Records {
			name, ok := strings.CutPrefix(rec.Key, ref+"/")
			if !ok {
				return names, nil
			}
			if _, marked := marks[name]; !marked {
				names = append(names, name)
			}
		}
		if after = page.Next; after == "" {
			return names, nil
		}
	}
}
