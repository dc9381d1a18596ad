-- The record. Onrush writes it from the broker's messages; Redis decides who gets a place.
CREATE TABLE activity (
  id         BIGINT UNSIGNED  NOT NULL PRIMARY KEY,
  title      VARCHAR(200)     NOT NULL,
  capacity   INT UNSIGNED     NOT NULL,
  state      TINYINT          NOT NULL COMMENT '1 open, 2 paused',
  active     INT UNSIGNED     NOT NULL DEFAULT 0 COMMENT 'rows of user_activity with status 1, kept by the consumer',
  opens_at   DATETIME(3)      NULL COMMENT 'UTC',
  closes_at  DATETIME(3)      NULL COMMENT 'UTC',
  created_at DATETIME(3)      NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  updated_at DATETIME(3)      NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
  CONSTRAINT activity_never_oversold CHECK (active <= capacity)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

-- One unique key only: a second one makes multi-row upserts deadlock.
CREATE TABLE user_activity (
  activity_id BIGINT UNSIGNED NOT NULL,
  user_id     VARCHAR(128)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  status      TINYINT         NOT NULL COMMENT '1 signed up, 2 cancelled',
  signup_time DATETIME(3)     NOT NULL COMMENT 'UTC',
  sequence    BIGINT UNSIGNED NOT NULL,
  version     BIGINT UNSIGNED NOT NULL COMMENT 'the highest is the truth',
  PRIMARY KEY (activity_id, user_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;
