package view

import "github.com/agentmesh/agentmesh/node/waiting"

// Feed delivers the broadcast envelopes of a space to the owner, as compact JSON without line breaks, because feeds
// become event streams. The reader must not change the envelopes.
type Feed = waiting.Feed[[]byte]

// FeedRoom is how many envelopes may wait for the reader of a feed.
const FeedRoom = 256
