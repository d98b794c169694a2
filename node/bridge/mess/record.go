package mess

import (
	"encoding/json"
	"fmt"

	"github.com/agentmesh/agentmesh/store"
)

// The namespaces of the exchange's records.
const (
	nsThreads      = "mess/threads"
	nsMessages     = "mess/messages"
	nsIDs          = "mess/ids"     // (requester, client id) → newest thread
	nsFiles        = "mess/files"   // attachments, and uploads of the owner
	nsUploads      = "mess/uploads" // uploads that no message names yet
	nsExecutors    = "mess/executors"
	nsCapabilities = "mess/capabilities"
	nsMeta         = "mess/meta"
	nsNotices      = "mess/notices" // what somebody must still be told (MESS-28)
	nsSeen         = "mess/seen"    // messages of the mesh and of links that were taken in

)

func threadRecord(t *Thread) store.Record {
	return store.Record{NS: nsThreads, Key: t.Ref, Body: encode(t)}
}

func decodeThread(rec store.Record) (*Thread, error) {
	t := &Thread{rev: rec.Rev}
	if err := json.Unmarshal(rec.Body, t); err != nil {
		return nil, fmt.Errorf("decode thread: %w", err)
	}
	return t, nil
}

func messageKey(ref string, serial int) string { return fmt.Sprintf("%s/%06d", ref, serial) }

func messageRecord(m Message, ref string) store.Record {
	return store.Record{NS: nsMessages, Key: messageKey(ref, m.Serial), Body: encode(m)}
}

func decodeMessage(rec store.Record) (Message, error) {
	var m Message
	if err := json.Unmarshal(rec.Body, &m); err != nil {
		return m, fmt.Errorf("decode message: %w", err)
	}
	return m, nil
}
