package mess

import (
	"encoding/json"
	"fmt"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
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

func threadRecord(t *thread.Thread) store.Record {
	return store.Record{NS: nsThreads, Key: t.Ref, Body: thread.Encode(t)}
}

func decodeThread(rec store.Record) (*thread.Thread, error) {
	t := &thread.Thread{Rev: rec.Rev}
	if err := json.Unmarshal(rec.Body, t); err != nil {
		return nil, fmt.Errorf("decode thread: %w", err)
	}
	return t, nil
}

func messageKey(ref string, serial int) string { return fmt.Sprintf("%s/%06d", ref, serial) }

func messageRecord(m thread.Message, ref string) store.Record {
	return store.Record{NS: nsMessages, Key: messageKey(ref, m.Serial), Body: thread.Encode(m)}
}

func decodeMessage(rec store.Record) (thread.Message, error) {
	var m thread.Message
	if err := json.Unmarshal(rec.Body, &m); err != nil {
		return m, fmt.Errorf("decode message: %w", err)
	}
	return m, nil
}
