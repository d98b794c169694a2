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

// ImportUpdate applies the documents that others added to a thread file. An unknown thread is adopted as it
// stands; for a known one, the usual transition rules hold (MESS-51).
func (x *Exchange) ImportUpdate(ctx context.Context, f thread.ParsedFile) error {
	t, err := x.Read(ctx, f.Thread.Ref, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		if !f.Thread.Status.Open() && time.Since(f.Thread.Updated) > x.cfg.Retention {
			return nil // past its retention here: only the file stays
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
	ours := make(map[string]bool) // digest of a document of ours → whether the file has it
	for _, doc := range thread.DocumentsOf(t, messages) {
		ours[thread.Digest(doc.Without("received"))] = false
	}
	missing := len(ours)
	for i, doc := range f.Documents {
		digest := thread.Digest(doc.Without("received"))
		if found, ok := ours[digest]; ok {
			if !found {
				ours[digest] = true
				missing--
			}
			continue
		}
		if err := x.importDocument(ctx, t.Ref, doc, f.Messages[i]); err != nil {
			return err
		}
	}
	// the files differ from the store, for example because the exchange crashed before it wrote them
	if x.Mirror != nil && (missing > 0 || f.Thread.Status != t.Status || f.Thread.Holder != t.Holder) {
		x.Mirror([]string{t.Ref})
	}
	return nil
}

// importDocument applies one document of a thread file, unless it was applied before.
func (x *Exchange) importDocument(ctx context.Context, ref string, doc wire.Value, m thread.Message) error {
	b := m.Block()
	if b.HasOnly("ack") || m.From == thread.ExchangeID {
		return nil // not a message of a participant
	}
	key := "file/" + ref + "/" + thread.Digest(doc)
	if _, err := x.records.Get(ctx, NSSeen, key, time.Now()); err == nil {
		return nil
	}
	mark := store.Change{Record: store.Record{NS: NSSeen, Key: key}}
	err := checkFileBlock(b)
	if err == nil {
		who := WriterOfFiles(m.From)
		_, err = x.Do(ctx, who, b, Options{Lax: true, Re: ref, Records: []store.Change{mark}})
	}
	if !thread.IsRefusal(err) {
		return err
	}
	return x.StoreRefusal(ctx, ref, m, thread.PublicText(err), nil, mark)
}

// checkFileBlock refuses entries that do not belong in the file of a thread. A writer of the file may use any name, but
// may write only about this thread: registrations, capabilities and new requests need an API key.
func checkFileBlock(b thread.Block) error {
	for i, e := range b {
		if e.Type == "request" || e.Type == "config" {
			return thread.Bad(thread.EntryPath(i, e), "does not belong in the file of a thread")
		}
	}
	return nil
}

// StoreRefusal stores a message that the state machine refused, so that nothing that a participant wrote is lost. The
// extra changes are part of the same transaction. If the thread does not exist, StoreRefusal does nothing.
func (x *Exchange) StoreRefusal(ctx context.Context, ref string, m thread.Message, reason string, replay *ReplayKey, extra ...store.Change) error {
	return store.Retry(func() error {
		tx := x.begin(Actor{ID: m.From, Channel: thread.ChannelRefused, forExchange: true}, Options{Records: extra})
		t, err := tx.load(ctx, ref)
		if err != nil {
			return IgnoreMissing(err)
		}
		tx.touch(t)
		b, err := thread.FromTree(m.Mess)
		if err != nil {
			return err
		}
		tx.appendMessage(t, m.From, b)
		tx.notices.list = nil // the message causes none
		x.log.Info("a message was refused and is kept with its thread", "thread", ref, "reason", reason)
		if err := tx.saveReplay(replay); err != nil {
			return err
		}
		return tx.commit(ctx)
	})
}

// Attachments returns the names of the files of a thread, except uploads that no message names yet.
func (x *Exchange) Attachments(ctx context.Context, ref string) ([]string, error) {
	var names []string
	for rec, err := range recordsBelow(ctx, x.records, NSFiles, ref+"/", time.Now()) {
		if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(rec.Key, ref+"/")
		if rec.Expires.IsZero() && thread.IsAttachmentName(name) {
			names = append(names, name)
		}
	}
	return names, nil
}
