// Package conversations stores what two agents sent to each other: the state machine as a pure function
// ([Conversation.Next]), the transcript as a hash chain ([Link]), and a [Book] of all conversations over the store.
//
// The package does not send, sign or answer messages. Start with [Book.Do]: the caller records what happened on a
// [Unit], and adds the changes of records that belong to it. Do commits all of that at once, or calls the function
// again if a row changed meanwhile.
//
// The invariants: A conversation that has ended stays ended. Whether a conversation has expired is computed, to the
// second, whenever somebody reads it, and never depends on a sweeper. The id of a conversation identifies it only
// together with the peer (AM-37).
package conversations
