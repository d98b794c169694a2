package exchange

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Attachment is a file of a thread. The exchange never interprets its bytes.
type Attachment struct {
	Name string `json:"name"` // such as att-003-image-photo.jpg
	Mime string `json:"mime"`
	Size int    `json:"size"`
	Data []byte `json:"data,omitempty"`
}

func (a Attachment) record(ref string) store.Record {
	return store.Record{NS: NSFiles, Key: ref + "/" + a.Name, Body: wire.MustMarshal(a)}
}

// Tree returns the value that stands for the file in a stored message. name is the name that the sender gave the file.
func (a Attachment) Tree(name string) wire.Value {
	return wire.Obj(
		wire.TextField("file", a.Name), wire.TextField("mime", a.Mime),
		wire.Field("size", wire.Int(int64(a.Size))),
	).WithOptional("name", name)
}

// KeepAttachment stores a file with a thread. The error is [store.ErrConflict] if the thread has a file of this name.
func (x *Exchange) KeepAttachment(ctx context.Context, ref string, a Attachment) error {
	return x.records.Apply(ctx, []store.Change{{Record: a.record(ref)}}, time.Now())
}

// Attachment returns a file of a thread that the actor may see.
func (x *Exchange) Attachment(ctx context.Context, who Actor, ref, file string) (Attachment, error) {
	if _, err := x.Thread(ctx, who, ref); err != nil {
		return Attachment{}, err
	}
	if !thread.IsAttachmentName(file) {
		return Attachment{}, thread.Bad("file", "is not the name of an attachment")
	}
	var a Attachment
	_, found, err := store.ReadRecord(ctx, x.records, NSFiles, ref+"/"+file, &a, time.Now())
	if err == nil && !found {
		err = thread.Missing("no such attachment")
	}
	return a, err
}

// shareKey is the key of the record with the secret behind all share tokens. Such a token in the address of a file lets
// anybody fetch the file without an API key.
const shareKey = "share/key"

// shareSecret returns the secret behind all share tokens, and creates it on the first call.
func (x *Exchange) shareSecret(ctx context.Context) (secret []byte, err error) {
	err = store.Retry(func() error {
		rec, err := x.records.Get(ctx, NSMeta, shareKey, time.Now())
		if secret = rec.Body; !errors.Is(err, store.ErrNotFound) {
			return err
		}
		secret = make([]byte, 32)
		rand.Read(secret) // never fails: crypto/rand
		return x.records.Apply(ctx, []store.Change{{Record: store.Record{NS: NSMeta, Key: shareKey, Body: secret}}}, time.Now())
	})
	return secret, err
}

// ShareToken returns the token that the address of a shared file must carry.
func (x *Exchange) ShareToken(ctx context.Context, ref, file string) (string, error) {
	secret, err := x.shareSecret(ctx)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(ref + "/" + file)) // neither part contains a slash
	return hex.EncodeToString(mac.Sum(nil)), nil
}
