-- One unique key only: a second one makes multi-row upserts deadlock.
CREATE TABLE IF NOT EXISTS user_activity (
  activity_id BIGINT UNSIGNED NOT NULL,
  user_id     VARCHAR(128)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  status      TINYINT         NOT NULL COMMENT '1 signed up, 2 cancelled',
  signup_time DATETIME(3)     NOT NULL COMMENT 'UTC',
  sequence    BIGINT UNSIGNED NOT NULL,
  version     BIGINT UNSIGNED NOT NULL COMMENT 'the highest is the truth',
  PRIMARY KEY (activity_id, user_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;
