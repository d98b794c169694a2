// Package conversations stores the messages that two agents send each other. It has the state machine as a pure
// function ([Conversation.Next]), the transcript as a hash chain ([Link]), and the [Book] of all conversations in the
// store. The package does not send, sign or answer messages. Start with [Book.Do]: its caller passes a function that
// records events on a [Unit] and adds the changes of records that belong to them. Do commits all of it together, or
// calls the function again if a row changed meanwhile.
//
// The invariants: A conversation that has ended stays ended. Whether a conversation has expired is computed, to the
// second, whenever somebody reads it, and never depends on a sweeper. The id of a conversation identifies it only
// together with the peer (AM-37).
package conversations
